//! `cargo xtask browser`: the console in a real browser.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;

use crate::process;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only checks whose sentence holds this
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    /// Save the book's pictures in this folder (docs/src/how-to/console)
    #[arg(long, value_name = "DIR")]
    screenshots: Option<PathBuf>,
    /// Save a picture of every page in this folder, at 360 and 1280 pixels, light and dark
    #[arg(long, value_name = "DIR")]
    gallery: Option<PathBuf>,
}

/// Builds the programs and the driver, and runs it; fails where a check does.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let programs = process::build_binaries()?;
    let target = programs.parent().context("no folder")?;
    let folder = process::root().join("browser");
    // A workspace of its own, in the same folder: what both have in common is compiled once.
    process::run(process::cargo(&folder).args(["build", "--locked", "--target-dir"]).arg(target))?;
    let packages = target.join("browser/axe");
    testbed::node(&folder.join("axe"), &packages)?;
    let mut command = Command::new(target.join("debug").join("browser"));
    command
        .arg("--programs")
        .arg(&programs)
        .arg("--axe")
        .arg(packages.join("node_modules/axe-core/axe.min.js"));
    if let Some(words) = &arguments.only {
        command.arg("--only").arg(words);
    }
    for (name, folder) in [("--screenshots", &arguments.screenshots), ("--gallery", &arguments.gallery)] {
        if let Some(folder) = folder {
            command.arg(name).arg(folder);
        }
    }
    process::run(&mut command)
}
