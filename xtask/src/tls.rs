//! `cargo xtask tls`: the tests of TLS, on servers that demand certificates.

use crate::process;

/// Builds the product with TLS, which the other tests have without, and runs its own tests and those of tests/tls; fails where one does.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let mut command = process::cargo(&process::root());
    command.args([
        "test",
        "--package",
        "oncely",
        "--locked",
        "--features",
        "tls-tests",
        "--lib",
        "--test",
        "tls",
    ]);
    process::run(command.args(arguments))
}
