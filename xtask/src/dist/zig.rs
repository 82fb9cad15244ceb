//! Zig's C compiler and linker, which carry the symbols of old C libraries with them.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The C library that released programs ask for at most: Debian 10's and RHEL 8's.
pub(super) const GLIBC: (u32, u32) = (2, 28);

/// The folder of the programs that `xtask/zig/requirements.txt` names.
pub(super) fn environment(root: &Path) -> anyhow::Result<PathBuf> {
    let python = testbed::python(&root.join("xtask/zig"), &root.join("target/dist/zig"))
        .context("without Zig only this machine's own C library is left (--plain)")?;
    Ok(python.parent().context("a program is in a folder")?.to_owned())
}
