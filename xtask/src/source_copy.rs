//! A copy of the sources below `target/mutants`, in which something else may stand than here: a planted bug, another commit.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::process;

/// The copy. There is one per lane, whatever is in it: Cargo tells sources of one path apart by their times alone, so that a second one
/// with older files would be taken for built.
pub(crate) struct SourceCopy {
    workshop: PathBuf,
    lane: CopyLane,
}

/// One of two copies, of which one can be built while the other one's programs run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CopyLane {
    First,
    Second,
}

impl SourceCopy {
    fn new(lane: CopyLane) -> Self {
        Self { workshop: process::root().join("target").join("mutants"), lane }
    }

    /// Of what git knows here, as it is on disk.
    pub(crate) fn of_here(lane: CopyLane) -> anyhow::Result<Self> {
        let copy = Self::new(lane);
        let root = process::root();
        let names = git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        copy.fill(&root, &names)?;
        Ok(copy)
    }

    /// Of a commit.
    pub(crate) fn of_commit(commit: &str) -> anyhow::Result<Self> {
        let copy = Self::new(CopyLane::First);
        let root = process::root();
        let unpacked = copy.workshop.join("commit");
        let _ = std::fs::remove_dir_all(&unpacked);
        std::fs::create_dir_all(&unpacked)?;
        let archive = copy.workshop.join("commit.tar");
        process::run(
            Command::new("git").current_dir(&root).args(["archive", "--output"]).arg(&archive).arg(commit),
        )?;
        process::run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&unpacked))?;
        std::fs::remove_file(&archive)?;
        let names = git(&root, &["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit])?;
        copy.fill(&unpacked, &names)?;
        std::fs::remove_dir_all(&unpacked)?;
        Ok(copy)
    }

    /// Where it is.
    pub(crate) fn tree(&self) -> PathBuf {
        self.workshop.join(self.in_lane("tree"))
    }

    /// Builds the programs; returns a folder of this name that they are in.
    pub(crate) fn build(&self, name: &str, features: &[&str]) -> anyhow::Result<PathBuf> {
        let built = self.workshop.join(self.in_lane("build"));
        // A release before may not have them all.
        let program = |name: &str| self.tree().join(format!("tests/programs/{name}.rs"));
        let has_all = process::EXAMPLES.iter().all(|name| program(name).exists());
        let more = if has_all { &process::PROGRAMS[1..] } else { &[] };
        let mut command = process::cargo(&self.tree());
        command.arg("build").args(process::PRODUCT).args(["--locked", "--bins"]).args(more).args(features);
        self.share(&mut command, "build", &process::root().join("target"));
        let output = command.output()?;
        anyhow::ensure!(
            output.status.success(),
            "does not compile:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        // The next one is built over this one, perhaps while its processes still run.
        let own = self.workshop.join("programs").join(name);
        std::fs::create_dir_all(&own)?;
        for program in ["worker", "relay", "oncely"] {
            let to = own.join(program);
            let _ = std::fs::remove_file(&to);
            std::fs::copy(built.join("debug").join(program), to)?;
        }
        if has_all {
            process::copy_examples(&built.join("debug"), &own, &process::EXAMPLES)?;
        }
        Ok(own)
    }

    /// Lets a call of cargo in the copy put what it makes into a folder of this name, and use what is built already in the folder `build`.
    pub(crate) fn share(&self, command: &mut Command, name: &str, build: &Path) {
        let wrapper = match self.lane {
            CopyLane::First => "env",
            CopyLane::Second => "/usr/bin/env",
        };
        command
            .arg("--target-dir")
            .arg(self.workshop.join(self.in_lane(name)))
            // Other people's crates are compiled once for both trees. The workspace's own must not be: Cargo tells two copies of a
            // package apart by their path below the workspace's root, which is the same here, and would link the crate of one tree
            // into the programs of the other. A wrapper is part of the name under which Cargo keeps a member of the workspace
            // (https://doc.rust-lang.org/cargo/reference/config.html#buildrustc-workspace-wrapper); `env` runs what it is given.
            .env("CARGO_BUILD_BUILD_DIR", build)
            .env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    }

    fn in_lane(&self, name: &str) -> String {
        match self.lane {
            CopyLane::First => name.to_owned(),
            CopyLane::Second => format!("{name}-2"),
        }
    }

    /// Makes the copy hold these files; what is the same keeps its time, so that only what differs is built.
    fn fill(&self, from: &Path, names: &str) -> anyhow::Result<()> {
        let tree = self.tree();
        let wanted: BTreeSet<PathBuf> =
            names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
        for name in &wanted {
            let to = tree.join(name);
            // Keeps a link: the copy may have a patch in the file or folder that it names.
            if let Ok(target) = std::fs::read_link(from.join(name)) {
                link(&target, &to)?;
                continue;
            }
            // One that is deleted and not yet committed so.
            let Ok(content) = std::fs::read(from.join(name)) else { continue };
            if std::fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            std::fs::create_dir_all(to.parent().unwrap_or(&tree))?;
            std::fs::write(&to, content)?;
        }
        remove_others(&tree, &tree, &wanted)
    }
}

/// The files of a folder by their names, as they are in a commit, or here.
pub(crate) fn files_of(commit: Option<&str>, folder: &str) -> anyhow::Result<Vec<(String, Vec<u8>)>> {
    let root = process::root();
    let names = match commit {
        Some(commit) => git(&root, &["ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, folder])?,
        None => git(&root, &["ls-files", "-z", "--cached", "--others", "--exclude-standard", folder])?,
    };
    let mut files = Vec::new();
    for name in names.split('\0').filter(|name| !name.is_empty()) {
        let content = match commit {
            Some(commit) => git(&root, &["show", &format!("{commit}:{name}")])?.into_bytes(),
            None => std::fs::read(root.join(name))?,
        };
        files.push((name.to_owned(), content));
    }
    Ok(files)
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().context("cannot run git")?;
    let text = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "git {}: {text}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn link(target: &Path, to: &Path) -> anyhow::Result<()> {
    if std::fs::read_link(to).is_ok_and(|there| there == target) {
        return Ok(());
    }
    std::fs::create_dir_all(to.parent().context("no folder")?)?;
    let _ = std::fs::remove_file(to);
    Ok(std::os::unix::fs::symlink(target, to)?)
}

/// What a patch has added, or what the sources no longer have.
fn remove_others(folder: &Path, tree: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            remove_others(&path, tree, wanted)?;
        } else if !wanted.contains(path.strip_prefix(tree)?) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
