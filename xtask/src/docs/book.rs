//! Builds the book with mdBook, which is installed on the spot where it is missing.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::process;

/// The version that the book is written for. A program and not a dependency of this one: its crates would be compiled by everybody who
/// runs any task, the newcomer's demo among them.
const VERSION: &str = "0.5.4";

/// Builds the book; returns the folder that it is in. Whatever mdBook complains about is an error.
pub(super) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let program = program(root)?;
    let output = Command::new(&program)
        .args(["build", "docs"])
        .current_dir(root)
        .env_remove("RUST_LOG")
        .env_remove("MDBOOK_LOG")
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    // An include that leads nowhere is told and skipped.
    let told = String::from_utf8_lossy(&output.stderr);
    let is_fine = output.status.success() && !told.contains("ERROR") && !told.contains("WARN");
    anyhow::ensure!(is_fine, "mdbook build docs: {}\n{told}", output.status);
    Ok(root.join("target/book"))
}

/// The one in PATH where its version is the one that is meant, else one in the user's cache, where the next clone finds it, too.
fn program(root: &Path) -> anyhow::Result<PathBuf> {
    let folder =
        testbed::cache().unwrap_or_else(|| root.join("target/tools")).join(format!("mdbook-{VERSION}"));
    let own = folder.join("bin/mdbook");
    for program in [PathBuf::from("mdbook"), own.clone()] {
        if is_wanted(&program) {
            return Ok(program);
        }
    }
    eprintln!("mdBook {VERSION} not found: installing it into {} (once)", folder.display());
    let mut install = process::cargo(root);
    // Without a server and without watching files: half of its dependencies.
    install
        .args(["install", "mdbook", "--locked", "--quiet", "--profile", "dev", "--version", VERSION])
        .args(["--no-default-features", "--features", "search", "--root"])
        .arg(&folder)
        // Nobody debugs it.
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    process::run(&mut install)
        .context("mdBook can't be installed; install it yourself and put it into PATH")?;
    Ok(own)
}

fn is_wanted(program: &Path) -> bool {
    let Ok(output) = Command::new(program).arg("--version").output() else { return false };
    String::from_utf8_lossy(&output.stdout).trim().trim_start_matches("mdbook").trim().trim_start_matches('v')
        == VERSION
}
