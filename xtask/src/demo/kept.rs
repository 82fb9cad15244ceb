//! `--keep`: what stays up after the demo. Whatever there is to look at is brought about here, before its URL is printed.

use testbed::Arena;

use crate::serve;

/// Prints where everything is, and keeps it until Ctrl-C.
pub(crate) async fn hold(arena: &Arena) -> anyhow::Result<()> {
    serve::print_exports(&arena.environment())?;
    serve::until_interrupted().await
}
