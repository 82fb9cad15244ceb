//! Child processes of the tasks.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The product's package, with the features that its dependencies have in the tests, so that nothing is compiled twice for it:
/// testbed asks for them.
pub(crate) const PRODUCT: [&str; 4] = ["--package", "oncely", "--package", "testbed"];

/// What the fault runs have beside the product's programs: a consumer whose handler runs under leases, and a server behind the HTTP door.
pub(crate) const EXAMPLES: [&str; 2] = ["charging", "taking"];
/// The programs of a fault run as cargo is told them.
pub(crate) const PROGRAMS: [&str; 7] =
    ["--bins", "--example", EXAMPLES[0], "--example", EXAMPLES[1], "--features", "axum"];

/// Cargo, in the repository's root.
pub(crate) fn cargo(root: &Path) -> Command {
    in_root(root, std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program that calls cargo, in the repository's root.
pub(crate) fn in_root(root: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root);
    // Cargo has set them for this program. ring's build script asks for them, so it and all that is built on it would be compiled anew each
    // time that somebody calls cargo without us.
    for (name, _) in std::env::vars_os() {
        if ["CARGO_MANIFEST_", "CARGO_PKG_"]
            .iter()
            .any(|of_package| name.to_string_lossy().starts_with(of_package))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end; fails with its words when it fails.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status =
        command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let words: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
    anyhow::ensure!(status.success(), "{} {}: {status}", command.get_program().display(), words.join(" "));
    Ok(())
}

/// Builds `worker`, `relay` and `oncely` as the tests have them, with steps at which they can end; returns a folder of their own, so that nobody takes them
/// for the real ones.
pub(crate) fn build_with_failpoints() -> anyhow::Result<PathBuf> {
    eprintln!("building worker, relay and oncely with failpoints");
    let failpoints = ["--features", "failpoints,otel"];
    run(cargo(&root()).arg("build").args(PRODUCT).args(PROGRAMS).args(failpoints))?;
    let here = std::env::current_exe()?;
    let from = here.parent().context("no folder")?;
    let to = from.join("failpoints");
    std::fs::create_dir_all(&to)?;
    for program in ["worker", "relay", "oncely"] {
        std::fs::copy(from.join(program), to.join(program))?;
    }
    copy_examples(from, &to, &EXAMPLES)?;
    Ok(to)
}

/// Builds release builds of `worker`, `relay`, `oncely` and the clients of the benchmarks; returns the folder that they are in.
pub(crate) fn build_release() -> anyhow::Result<PathBuf> {
    eprintln!("building worker, relay, oncely and the clients for release");
    run(cargo(&root()).args(["build", "--release", "--package", "oncely", "--package", "bench", "--bins"]))?;
    // Beside the folder of this program's own profile.
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(Path::parent).context("no folder")?;
    Ok(target.join("release"))
}

/// Builds other people's relays for release; returns the folder that they are in. A workspace of their own: they need another
/// sqlx, which no other task has to compile.
pub(crate) fn build_peers() -> anyhow::Result<PathBuf> {
    eprintln!("building other people's relays for release");
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(Path::parent).context("no folder")?.join("peers");
    let mut build = cargo(&root().join("bench/peers/outbox"));
    run(build.args(["build", "--release", "--locked", "--bins", "--target-dir"]).arg(&target))?;
    Ok(target.join("release"))
}

/// Builds `worker`, `relay` and `oncely`; returns the folder that they are in.
pub(crate) fn build_binaries() -> anyhow::Result<PathBuf> {
    eprintln!("building worker, relay and oncely");
    run(cargo(&root()).arg("build").args(PRODUCT).arg("--bins"))?;
    // Beside this program: both were built by the same profile.
    let here = std::env::current_exe()?;
    Ok(here.parent().context("no folder")?.to_path_buf())
}

/// The same, with what else a fault run has.
pub(crate) fn build_for_faults() -> anyhow::Result<PathBuf> {
    eprintln!("building worker, relay, oncely, charging and taking");
    run(cargo(&root()).arg("build").args(PRODUCT).args(PROGRAMS))?;
    let here = std::env::current_exe()?;
    let folder = here.parent().context("no folder")?.to_path_buf();
    copy_examples(&folder, &folder, &EXAMPLES)?;
    Ok(folder)
}

/// Puts examples that were built in `built` beside other programs.
pub(crate) fn copy_examples(built: &Path, to: &Path, names: &[&str]) -> anyhow::Result<()> {
    for name in names {
        let program = to.join(name);
        // A program that runs can't be written, but its name can be another file's.
        let _ = std::fs::remove_file(&program);
        std::fs::copy(built.join("examples").join(name), program)?;
    }
    Ok(())
}
