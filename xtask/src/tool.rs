//! Other people's programs that tasks run: installed on the spot where they are missing.
//!
//! Programs and not dependencies of this one: their crates would be compiled by everybody who runs any task, the newcomer's demo among
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::process;

/// A program of a crate.
#[derive(Debug)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// For `cargo install`: what is left out of it.
    pub(crate) options: &'static [&'static str],
}

impl Tool {
    /// The one in PATH where its version is the one that is meant, else one in the user's cache, where the next clone finds it, too.
    pub(crate) fn program(&self, root: &Path) -> anyhow::Result<PathBuf> {
        let Self { name, version, options } = self;
        let folder =
            testbed::cache().unwrap_or_else(|| root.join("target/tools")).join(format!("{name}-{version}"));
        let own = folder.join("bin").join(name);
        for program in [PathBuf::from(name), own.clone()] {
            if self.is(&program) {
                return Ok(program);
            }
        }
        eprintln!("{name} {version} not found: installing it into {} (once)", folder.display());
        let mut install = process::cargo(root);
        install
            .args(["install", name, "--locked", "--quiet", "--profile", "dev", "--version", version])
            .args(*options)
            .arg("--root")
            .arg(&folder)
            // Nobody debugs it.
            .env("CARGO_PROFILE_DEV_DEBUG", "false");
        process::run(&mut install).with_context(|| {
            format!("{name} can't be installed; install version {version} yourself and put it into PATH")
        })?;
        Ok(own)
    }

    fn is(&self, program: &Path) -> bool {
        let Ok(output) = Command::new(program).arg("--version").output() else { return false };
        let said = String::from_utf8_lossy(&output.stdout);
        said.split_whitespace().nth(1).map(|version| version.trim_start_matches('v')) == Some(self.version)
    }
}
