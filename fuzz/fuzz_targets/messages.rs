//! decode → identify → classify: what any message goes through before a handler.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| oncely::fuzzing::decode_identify_classify(input));
