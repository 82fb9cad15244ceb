//! The AMQP client's parser of frames: what a broker sends before anybody looks at it.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = amq_protocol::frame::parse_frame(input);
});
