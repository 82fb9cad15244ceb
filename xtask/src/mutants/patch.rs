//! Bugs as patches: `xtask/mutants/NAME.patch` takes one care out of the code, and says which in its header. A patch is applied to a
//! copy of the sources below `target/mutants`, and built there, so that the product's own code knows of no bug.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::process;

/// A patch file.
#[derive(Clone, Debug)]
pub(crate) struct Patch {
    /// The bug's name: the file's, without its ending.
    pub(crate) name: String,
    /// What the first line of its header says that it leaves out.
    pub(crate) care: String,
    path: PathBuf,
}

/// Before the care in a patch's first line.
const HEADER: &str = "Leaves out: ";

/// All patches, by name.
pub(crate) fn all() -> anyhow::Result<Vec<Patch>> {
    let folder = process::root().join("xtask").join("mutants");
    let mut patches = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "patch") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let care = text.lines().next().and_then(|line| line.strip_prefix(HEADER));
        patches.push(Patch {
            name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            care: care
                .with_context(|| format!("{} does not begin with {HEADER:?}", path.display()))?
                .to_owned(),
            path,
        });
    }
    patches.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(patches)
}

impl Patch {
    /// Does it still apply to the sources as they are?
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.apply(&process::root(), true)
    }

    /// Builds the programs with this bug, and the steps at which they can end; returns the folder that they are in.
    pub(crate) fn build(&self) -> anyhow::Result<PathBuf> {
        let workshop = process::root().join("target").join("mutants");
        let tree = workshop.join("tree");
        copy_sources(&process::root(), &tree)?;
        self.apply(&tree, false)?;
        let built = workshop.join("build");
        let output = process::cargo(&tree)
            .arg("build")
            .args(process::PRODUCT)
            .args(["--locked", "--bins", "--features", "failpoints", "--target-dir"])
            .arg(&built)
            // Other people's crates are compiled once for both trees. The workspace's own must not be: Cargo tells two copies of a
            // package apart by their path below the workspace's root, which is the same here, and would link the crate of one tree
            // into the programs of the other. A wrapper is part of the name under which Cargo keeps a member of the workspace
            // (https://doc.rust-lang.org/cargo/reference/config.html#buildrustc-workspace-wrapper); `env` runs what it is given.
            .env("CARGO_BUILD_BUILD_DIR", process::root().join("target"))
            .env("RUSTC_WORKSPACE_WRAPPER", "env")
            .output()?;
        anyhow::ensure!(
            output.status.success(),
            "{} does not compile:\n{}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        // The next patch is built over this one, perhaps while its processes still run.
        let own = workshop.join("programs").join(&self.name);
        std::fs::create_dir_all(&own)?;
        for program in ["worker", "relay", "oncely"] {
            let to = own.join(program);
            let _ = std::fs::remove_file(&to);
            std::fs::copy(built.join("debug").join(program), to)?;
        }
        Ok(own)
    }

    fn apply(&self, tree: &Path, only_check: bool) -> anyhow::Result<()> {
        let mut command = Command::new("git");
        command.arg("apply").args(only_check.then_some("--check")).arg(&self.path).current_dir(tree);
        if !only_check {
            // The copy lies within the repository: git would look for the files at its root.
            command.env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree));
        }
        let output = command.output().context("cannot run git")?;
        anyhow::ensure!(
            output.status.success(),
            "{} no longer applies: {}",
            self.name,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    }
}

/// Makes `tree` hold what git knows of `root`, as it is on disk; what is the same keeps its time, so that only what differs is built.
fn copy_sources(root: &Path, tree: &Path) -> anyhow::Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    anyhow::ensure!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout)?;
    let wanted: BTreeSet<PathBuf> =
        names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    for name in &wanted {
        // One that is deleted and not yet committed so.
        let Ok(content) = std::fs::read(root.join(name)) else { continue };
        let to = tree.join(name);
        if std::fs::read(&to).is_ok_and(|there| there == content) {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap_or(tree))?;
        std::fs::write(&to, content)?;
    }
    remove_others(tree, tree, &wanted)
}

/// What a patch has added, or what the sources no longer have.
fn remove_others(folder: &Path, tree: &Path, wanted: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(&path, tree, wanted)?;
        } else if !wanted.contains(path.strip_prefix(tree)?) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::scripts::MUTANTS;

    #[test]
    fn each_patch_still_applies() {
        let broken: Vec<String> = all()
            .unwrap()
            .iter()
            .filter_map(|patch| patch.check().err().map(|error| format!("{error:#}")))
            .collect();
        assert_eq!(broken, Vec::<String>::new());
    }

    #[test]
    fn each_patch_has_a_script_and_each_script_its_patch() {
        let patches: BTreeSet<String> = all().unwrap().into_iter().map(|patch| patch.name).collect();
        let scripts: BTreeSet<String> = MUTANTS.iter().map(|mutant| mutant.bug.to_owned()).collect();
        assert_eq!(patches, scripts);
    }
}
