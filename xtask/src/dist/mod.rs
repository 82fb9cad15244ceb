//! `cargo xtask dist`: what a release consists of, from a commit and nothing else.
//!
//! The sources are the commit's, in a folder of their own; the machine's paths and the time of day reach nothing that is packed. So the
//! same commit, compiler and linker make the same bytes, wherever and whenever: `--twice` looks.

mod archive;
mod crates;
pub(crate) mod image;
mod notices;
mod programs;
mod sbom;
mod source;
mod tree;
mod trial;
mod unit;
mod zig;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use sha2::{Digest as _, Sha256};

use self::crates::Crates;
use self::programs::Compiler;
use self::source::Source;
use crate::{docs, process};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The commit or tag to release [default: the one that is checked out]
    #[arg(long)]
    commit: Option<String>,
    /// Build twice, in two folders, and compare the bytes
    #[arg(long)]
    twice: bool,
    /// Link against this machine's own C library instead of an old one: quicker, and runs on machines as new as this one
    #[arg(long)]
    plain: bool,
    /// Cargo's profile: "dev" builds in a fraction of the time, to try what is packed and not what is compiled
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Then install it on a bare Debian and process a message there (as root)
    #[arg(long = "try")]
    try_it: bool,
}

/// What was made.
#[derive(Debug, PartialEq, Eq)]
struct Release {
    tarball: File,
    sbom: File,
}

/// A file of a release.
#[derive(Debug, PartialEq, Eq)]
struct File {
    name: String,
    bytes: Vec<u8>,
}

impl File {
    fn line(&self) -> String {
        // As sha256sum --check reads it.
        format!("{}  {}\n", hex(&Sha256::digest(&self.bytes)), self.name)
    }
}

/// Makes the tarball, the SBOM and their checksums in `target/dist`.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = process::root();
    let folder = root.join("target/dist");
    std::fs::create_dir_all(&folder)?;
    let compiler = match arguments.plain {
        true => Compiler::Plain,
        false => Compiler::Zig(zig::environment(&root)?),
    };
    let commit = source::commit(&root, arguments.commit.as_deref())?;
    let release = make(&root, &commit, &folder.join("first"), &compiler, &arguments.profile)?;
    if arguments.twice {
        // Not as long as the other one: a path that is left in a program would move what is behind it.
        let second = make(&root, &commit, &folder.join("the-second"), &compiler, &arguments.profile)?;
        for (first, second) in [(&release.tarball, &second.tarball), (&release.sbom, &second.sbom)] {
            anyhow::ensure!(first == second, "{}: {}", first.name, difference(first, second)?);
        }
        eprintln!("built twice, in two folders: the same bytes");
    }
    let mut sums = String::new();
    for file in [&release.tarball, &release.sbom] {
        std::fs::write(folder.join(&file.name), &file.bytes)?;
        sums.push_str(&file.line());
        eprintln!("wrote {} ({} MB)", folder.join(&file.name).display(), file.bytes.len() / 1_000_000);
    }
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    if arguments.try_it {
        trial::run(&folder, &release.tarball.name).await?;
    }
    Ok(())
}

/// Everything from the commit on, in a folder that holds nothing else.
fn make(
    root: &Path,
    commit: &str,
    folder: &Path,
    compiler: &Compiler,
    profile: &str,
) -> anyhow::Result<Release> {
    let source = Source::export(root, commit, &folder.join("source"))?;
    let programs = programs::build(&source, &folder.join("build"), compiler, profile)?;
    let crates = Crates::read(&source)?;
    let sbom = sbom::document(&source, &crates)?;
    let book = docs::build_book(&source.folder)?;
    let tree = tree::collect(&source, &programs, &book, &sbom, &notices::text(&source, &crates)?)?;
    let name = format!("oncely-{}-{}-linux-gnu", source.version, std::env::consts::ARCH);
    let bytes = archive::pack(&tree, &name, source.time)?;
    Ok(Release {
        tarball: File { name: format!("{name}.tar.gz"), bytes },
        sbom: File { name: format!("oncely-{}.cdx.json", source.version), bytes: sbom.into_bytes() },
    })
}

/// Which files of two tarballs differ.
fn difference(first: &File, second: &File) -> anyhow::Result<String> {
    if !first.name.ends_with(".tar.gz") {
        return Ok("the two builds differ".to_owned());
    }
    let (first, second) = (archive::sums(&first.bytes)?, archive::sums(&second.bytes)?);
    let differ = first.iter().filter(|(path, sum)| second.get(*path) != Some(*sum));
    let names: Vec<String> = differ.map(|(path, _)| path.display().to_string()).collect();
    Ok(format!("the two builds differ in {}", names.join(", ")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a folder, or empties it; returns its path.
fn make_empty(folder: &Path) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    Ok(folder.to_owned())
}
