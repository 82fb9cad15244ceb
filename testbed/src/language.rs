//! Python and Node with what is run in these languages, below `target/`: installed once, by the languages' own clients, from what is pinned
//! beside it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::apt::{in_path, install};
use crate::files::lock_exclusively;

/// Name of the lock under which the clients below `target` are set up.
const LOCK: &str = "languages";

/// A Python that has what `folder/requirements.txt` names, in a virtual environment in `home`, below `target`; returns its program.
///
/// # Errors
/// When there is no Python and none can be installed, or the packages can't be fetched: says what and what helps.
pub fn python(folder: &Path, home: &Path) -> anyhow::Result<PathBuf> {
    let _guard = lock_exclusively(LOCK)?;
    // Debian's Python is there without what makes virtual environments.
    let is_whole = || {
        let can = |python: PathBuf| succeeds(Command::new(python).args(["-c", "import venv, ensurepip"]));
        in_path("python3").is_some_and(can)
    };
    install(|| (!is_whole()).then(|| ("Python 3".to_owned(), vec!["python3", "python3-venv"])))
        .map_err(|failure| anyhow::anyhow!(helps("Python 3 with venv", failure.why)))?;
    let python = in_path("python3").context("python3 has vanished")?;
    let program = home.join("bin/python");
    let wanted = std::fs::read_to_string(folder.join("requirements.txt"))?;
    if is_installed(home, &wanted) && program.exists() {
        return Ok(program);
    }
    begin(home)?;
    run(Command::new(python).arg("-m").arg("venv").arg(home))?;
    let requirements = folder.join("requirements.txt");
    run(Command::new(&program).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(requirements))?;
    end(home, &wanted)?;
    Ok(program)
}

/// Node and a copy of `folder` in `home`, below `target`, that has what its `package-lock.json` names; returns the program.
///
/// # Errors
/// Like [`python`].
pub fn node(folder: &Path, home: &Path) -> anyhow::Result<PathBuf> {
    let _guard = lock_exclusively(LOCK)?;
    let is_whole = || in_path("node").is_some() && in_path("npm").is_some();
    install(|| (!is_whole()).then(|| ("Node".to_owned(), vec!["nodejs", "npm"])))
        .map_err(|failure| anyhow::anyhow!(helps("Node 18 or later with npm", failure.why)))?;
    let (node, npm) = (in_path("node"), in_path("npm"));
    let (node, npm) = (node.context("node has vanished")?, npm.context("npm has vanished")?);
    // A copy, since Node looks for packages beside the program.
    let wanted = std::fs::read_to_string(folder.join("package-lock.json"))?;
    let is_installed = is_installed(home, &wanted);
    if !is_installed {
        begin(home)?;
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), home.join(entry.file_name()))?;
        }
    }
    if !is_installed {
        run(Command::new(npm).args(["ci", "--no-fund", "--no-audit"]).current_dir(home))?;
        end(home, &wanted)?;
    }
    Ok(node)
}

const STAMP: &str = ".installed";

/// Was exactly this installed there, to its end?
fn is_installed(home: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(home.join(STAMP)).is_ok_and(|found| found == wanted)
}

fn begin(home: &Path) -> anyhow::Result<()> {
    if home.exists() {
        std::fs::remove_dir_all(home)?;
    }
    Ok(std::fs::create_dir_all(home)?)
}

fn end(home: &Path, wanted: &str) -> anyhow::Result<()> {
    Ok(std::fs::write(home.join(STAMP), wanted)?)
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {program}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{program} could not install what is needed ({}): {}{}\n\
         Its package index must be reachable, once; what it fetched is kept below target/.",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    Ok(())
}

fn helps(what: &str, why: &str) -> String {
    format!(
        "{what} is needed, and {why}. Install it yourself, or run as root on Debian or Ubuntu, so that its packages can be \
         installed."
    )
}
