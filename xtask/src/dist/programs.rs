//! The programs, built so that nothing of this machine is in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::source::Source;
use super::zig;
use crate::process;

/// Who builds.
#[derive(Debug)]
pub(super) enum Compiler {
    /// Cargo, against this machine's C library.
    Plain,
    /// cargo-zigbuild in this folder, against an old one.
    Zig(PathBuf),
}

/// What is built.
pub(super) const NAMES: [&str; 3] = ["oncely", "relay", "worker"];

/// The features that a release has beside the default ones.
pub(super) const FEATURES: &str = "otel";

/// For what it is built.
pub(super) fn target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// The programs' files, by name.
pub(super) fn build(
    source: &Source,
    build: &Path,
    compiler: &Compiler,
    profile: &str,
) -> anyhow::Result<BTreeMap<&'static str, PathBuf>> {
    eprintln!("building {} for a release, in {}", NAMES.join(", "), build.display());
    let moved = renamed_folders(source, build)?;
    let mut cargo = process::cargo(&source.folder);
    let triple = target();
    match compiler {
        Compiler::Plain => cargo.args(["build", "--target", &triple]),
        Compiler::Zig(folder) => {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let path =
                std::env::join_paths(std::iter::once(folder.clone()).chain(std::env::split_paths(&path)))?;
            let (major, minor) = zig::GLIBC;
            // Cargo finds its subcommand by PATH; what it writes stays below the target.
            cargo.env("PATH", path).env("CARGO_ZIGBUILD_CACHE_DIR", build.join("zigbuild"));
            cargo.args(["zigbuild", "--target", &format!("{triple}.{major}.{minor}")])
        }
    };
    cargo
        .args(["--locked", "--package", "oncely", "--bins", "--features", FEATURES, "--profile", profile])
        .env("CARGO_TARGET_DIR", build)
        .env("CARGO_INCREMENTAL", "0")
        .env("SOURCE_DATE_EPOCH", source.time.to_string())
        // This program was started by another cargo, with a toolchain and a package in its environment.
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&moved, "--remap-path-prefix=").join("\x1f"))
        .env("CFLAGS", flags(&moved, "-ffile-prefix-map=").join(" "));
    process::run(&mut cargo)?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let folder = build.join(&triple).join(folder);
    let programs: BTreeMap<_, _> = NAMES.iter().map(|name| (*name, folder.join(name))).collect();
    for (name, program) in &programs {
        check_paths(&std::fs::read(program)?, &moved).with_context(|| format!("{name} is not for others"))?;
        if matches!(compiler, Compiler::Zig(_)) {
            check_libc_version(program)?;
        }
    }
    Ok(programs)
}

/// Folders of this machine, and under what names the programs know them.
fn renamed_folders(source: &Source, build: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let cargo = home("CARGO_HOME").or_else(|| Some(home("HOME")?.join(".cargo"))).context("no CARGO_HOME")?;
    let sysroot = rustc(&["--print", "sysroot"])?;
    let version = rustc(&["--version", "--verbose"])?;
    let hash =
        version.lines().find_map(|line| line.strip_prefix("commit-hash: ")).context("rustc has no hash")?;
    // The last one that fits counts: the narrower one behind the wider.
    Ok(vec![
        (cargo, "/cargo".to_owned()),
        (PathBuf::from(sysroot.trim()).join("lib/rustlib/src/rust"), format!("/rustc/{hash}")),
        (source.folder.clone(), "/oncely".to_owned()),
        (build.to_owned(), "/build".to_owned()),
    ])
}

fn rustc(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("rustc").args(arguments).output().context("cannot run rustc")?;
    anyhow::ensure!(output.status.success(), "rustc {}: {}", arguments.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn flags(moved: &[(PathBuf, String)], flag: &str) -> Vec<String> {
    moved.iter().map(|(from, to)| format!("{flag}{}={to}", from.display())).collect()
}

/// Fails where one of these folders is named in a program.
fn check_paths(program: &[u8], moved: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (folder, _) in moved {
        let wanted = folder.display().to_string();
        if let Some(at) = program.windows(wanted.len()).position(|part| part == wanted.as_bytes()) {
            let end = (at + 200).min(program.len());
            let shown: String = String::from_utf8_lossy(&program[at..end])
                .chars()
                .take_while(|letter| !letter.is_control())
                .collect();
            anyhow::bail!("a path of this machine is in it: {shown}");
        }
    }
    Ok(())
}

/// Fails where a program asks for a younger C library than [`zig::GLIBC`].
fn check_libc_version(program: &Path) -> anyhow::Result<()> {
    let output = Command::new("objdump")
        .arg("--dynamic-syms")
        .arg(program)
        .output()
        .context("cannot run objdump (Debian's binutils), which says what a program asks for")?;
    anyhow::ensure!(output.status.success(), "objdump {}: {}", program.display(), output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let asked = youngest(&text).with_context(|| format!("{} asks for no C library", program.display()))?;
    let (major, minor) = asked;
    eprintln!("{} asks for GLIBC_{major}.{minor}", program.display());
    anyhow::ensure!(asked <= zig::GLIBC, "{} asks for GLIBC_{major}.{minor}", program.display());
    Ok(())
}

/// The youngest C library that symbols are asked of.
fn youngest(symbols: &str) -> Option<(u32, u32)> {
    let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
        let mut parts = rest.split(|letter: char| !letter.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_version_counts_as_a_number() {
        let symbols = "DF *UND* (GLIBC_2.2.5) free\nDF *UND* (GLIBC_2.28)  fcntl64\nDF *UND* (GLIBC_2.3) x\n";
        assert_eq!(youngest(symbols), Some((2, 28)));
        assert_eq!(youngest("DF *UND* free"), None);
    }

    #[test]
    fn a_path_that_is_left_is_found() {
        let moved = [(PathBuf::from("/home/ana/oncely"), "/oncely".to_owned())];
        check_paths(b"\0/oncely/src/lib.rs\0", &moved).unwrap();
        let error = check_paths(b"\0/home/ana/oncely/src/lib.rs\0more", &moved).unwrap_err();
        assert!(error.to_string().ends_with("/home/ana/oncely/src/lib.rs"), "{error}");
    }
}
