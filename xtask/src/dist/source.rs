//! The commit that is released, in a folder of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::process;

/// A commit's files, as Git has them: nothing that lies about in the checkout gets into a release.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) folder: PathBuf,
    /// The package's.
    pub(super) version: String,
    /// When the commit was made, in seconds since 1970: the time of all that is packed.
    pub(super) time: u64,
}

impl Source {
    /// The files of a commit.
    pub(super) fn export(root: &Path, commit: &str, folder: &Path) -> anyhow::Result<Self> {
        let time = git(root, &["log", "-1", "--format=%ct", commit])?.trim().parse()?;
        super::make_empty(folder)?;
        let mut archive = Command::new("git")
            .args(["archive", "--format=tar", commit])
            .current_dir(root)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run git")?;
        let files = archive.stdout.take().context("no output")?;
        // With today's times: by the commit's, which may be before the last build, cargo would take changed files for built ones.
        let mut unpack = Command::new("tar");
        process::run(unpack.args(["--extract", "--touch", "--directory"]).arg(folder).stdin(files))?;
        anyhow::ensure!(archive.wait()?.success(), "git archive failed");
        Ok(Self { folder: folder.to_owned(), version: version(&folder.join("Cargo.toml"))?, time })
    }

    /// The text of one of its files.
    pub(super) fn text(&self, name: &str) -> anyhow::Result<String> {
        std::fs::read_to_string(self.folder.join(name)).with_context(|| format!("cannot read {name}"))
    }
}

/// The commit of this name, or the one that is checked out: asked once, since somebody may commit while it is built.
pub(super) fn commit(root: &Path, name: Option<&str>) -> anyhow::Result<String> {
    if name.is_none() && !git(root, &["status", "--porcelain"])?.is_empty() {
        eprintln!("what is not committed is left out");
    }
    let name = format!("{}^{{commit}}", name.unwrap_or("HEAD"));
    Ok(git(root, &["rev-parse", "--verify", "--end-of-options", &name])?.trim().to_owned())
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().context("cannot run git")?;
    anyhow::ensure!(output.status.success(), "git {}: {}", arguments.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn version(manifest: &Path) -> anyhow::Result<String> {
    let manifest: toml::Table = toml::from_str(&std::fs::read_to_string(manifest)?)?;
    let version = manifest.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    Ok(version.context("Cargo.toml: there is no workspace.package.version")?.to_owned())
}
