//! Bugs as patches: `xtask/mutants/NAME.patch` takes one care out of the code, and says which in its header. A patch is applied to a
//! copy of the sources, and built there, so that the product's own code knows of no bug.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::process;
use crate::source_copy::{CopyLane, SourceCopy};

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
        self.plant(CopyLane::First)?
            .build(&self.name, &["--features", "failpoints"])
            .with_context(|| self.name.clone())
    }

    /// A copy of the sources that has this bug.
    pub(crate) fn plant(&self, lane: CopyLane) -> anyhow::Result<SourceCopy> {
        let copy = SourceCopy::of_here(lane)?;
        self.apply(&copy.tree(), false)?;
        Ok(copy)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::mutants::scripts::MUTANTS;
    use crate::mutants::suites::TESTED;

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
    fn each_patch_has_a_script_or_tests_and_each_of_these_its_patch() {
        let patches: BTreeSet<String> = all().unwrap().into_iter().map(|patch| patch.name).collect();
        let scripts = MUTANTS.iter().map(|mutant| mutant.bug);
        let planted: BTreeSet<String> =
            scripts.chain(TESTED.iter().map(|mutant| mutant.bug)).map(str::to_owned).collect();
        assert_eq!(patches, planted);
    }
}
