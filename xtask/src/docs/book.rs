//! Builds the book with mdBook.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::tool::Tool;

/// The version that the book is written for.
const MDBOOK: Tool = Tool {
    name: "mdbook",
    version: "0.5.4",
    // Without a server and without watching files: half of its dependencies.
    options: &["--no-default-features", "--features", "search"],
};

/// Builds the book; returns the folder that it is in. Whatever mdBook complains about is an error.
pub(super) fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let program = MDBOOK.program(root)?;
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
