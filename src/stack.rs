//! Room for deeply nested headers.

use std::os::unix::process::CommandExt as _;

/// The variable from which Rust's standard library takes the stack size of threads that ask for none.
const VARIABLE: &str = "RUST_MIN_STACK";

/// Virtual, not resident: pages are mapped when touched.
const BYTES: &str = "268435456";

/// Starts this program anew with room for deeply nested headers, unless it has been already.
///
/// A message's headers may nest tables as deep as one frame of 128 KiB allows (about 18,000 levels; RabbitMQ accepts
/// them), and the AMQP client parses them by recursion on a thread of its own, whose stack of 2 MiB ends at a few hundred:
/// one such message would kill every worker that it is delivered to. The size can be set by this variable only, and only
/// before the program starts. An embedding program that reads untrusted headers does well to call this first in `main`.
pub fn deepen() {
    if std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    // Returns only when it fails; then the program goes on as it is.
    let error =
        std::process::Command::new(program).args(std::env::args_os().skip(1)).env(VARIABLE, BYTES).exec();
    tracing::debug!(error = %error, "not started anew with a deeper stack");
}
