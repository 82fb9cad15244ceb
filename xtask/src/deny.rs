//! `cargo xtask deny`: what may be in a build, by deny.toml.

use std::process::Command;

use crate::process;
use crate::tool::Tool;

const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2", options: &[] };

/// Fails where a licence, a source or a crate is not among those that are allowed, or where a weakness is known of one. Known
/// weaknesses are left out where nobody answers who keeps the list of them.
pub(crate) fn run() -> anyhow::Result<()> {
    let root = process::root();
    let program = CARGO_DENY.program(&root)?;
    let check = |what: &[&str]| {
        let mut command = Command::new(&program);
        // What is released, and all that a build of it may turn on.
        command.current_dir(&root).args(["--locked", "--all-features", "--workspace", "check"]).args(what);
        command
    };
    process::run(&mut check(&["bans", "licenses", "sources"]))?;
    let mut fetch = Command::new(&program);
    let fetched = fetch.current_dir(&root).args(["--locked", "fetch", "db"]).output()?;
    if !fetched.status.success() {
        eprintln!("the list of known weaknesses can't be fetched: not looked at");
        return Ok(());
    }
    process::run(&mut check(&["--disable-fetch", "advisories"]))
}
