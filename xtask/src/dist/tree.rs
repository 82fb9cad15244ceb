//! What is in a tarball, and where.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::source::Source;

/// A file that is packed.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) mode: u32,
    pub(super) bytes: Vec<u8>,
}

/// All files by their path below `/`.
pub(super) type Tree = BTreeMap<PathBuf, Packed>;

const DOCUMENTS: &str = "usr/share/doc/oncely";
const SHARED: &str = "usr/share/oncely";

/// Single files of the sources, and where they go.
const FILES: [(&str, &str); 9] = [
    ("README.md", DOCUMENTS),
    ("CHANGELOG.md", DOCUMENTS),
    ("SECURITY.md", DOCUMENTS),
    ("LICENSE-APACHE", DOCUMENTS),
    ("LICENSE-MIT", DOCUMENTS),
    ("oncely.default.toml", SHARED),
    ("alerts.yml", SHARED),
    ("dashboards/oncely.json", SHARED),
    ("examples/oncely.toml", SHARED),
];

/// Folders of the sources, and where their files go.
const FOLDERS: [(&str, &str); 2] =
    [("migrations", "usr/share/oncely/migrations"), ("deploy/systemd", "usr/lib/systemd/system")];

/// Scripts that complete command lines, and where the shells of distributions look for them.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/oncely"),
    ("fish", "usr/share/fish/vendor_completions.d/oncely.fish"),
    ("zsh", "usr/share/zsh/site-functions/_oncely"),
];

/// Collects programs, documents, the built book, units and what the programs write about themselves.
pub(super) fn collect(
    source: &Source,
    programs: &BTreeMap<&'static str, PathBuf>,
    book: &Path,
    sbom: &str,
    notices: &str,
) -> anyhow::Result<Tree> {
    let mut tree = Tree::new();
    for (name, program) in programs {
        // `worker` and `relay` would be anybody's names in a PATH; there they are verbs of `oncely`.
        let folder = if *name == "oncely" { "usr/bin" } else { "usr/libexec/oncely" };
        add(&mut tree, Path::new(folder).join(name), 0o755, std::fs::read(program)?);
    }
    for (name, folder) in FILES {
        let file = source.folder.join(name);
        let to = Path::new(folder).join(file.file_name().context("a file has a name")?);
        add(&mut tree, to, 0o644, std::fs::read(&file).with_context(|| format!("cannot read {name}"))?);
    }
    for (from, to) in FOLDERS {
        add_folder(&mut tree, &source.folder.join(from), Path::new(to))?;
    }
    add_all(&mut tree, book, &Path::new(DOCUMENTS).join("book"))?;
    let oncely = programs.get("oncely").context("oncely was not built")?;
    for (shell, path) in COMPLETIONS {
        add(&mut tree, path.into(), 0o644, output(oncely, &["completions", shell])?);
    }
    let pages = super::make_empty(&source.folder.with_file_name("man"))?;
    output(oncely, &["man", "--dir", &pages.display().to_string()])?;
    add_folder(&mut tree, &pages, Path::new("usr/share/man/man1"))?;
    add(&mut tree, Path::new(DOCUMENTS).join("oncely.cdx.json"), 0o644, sbom.into());
    add(&mut tree, Path::new(DOCUMENTS).join("THIRD-PARTY-NOTICES"), 0o644, notices.into());
    Ok(tree)
}

fn add(tree: &mut Tree, path: PathBuf, mode: u32, bytes: Vec<u8>) {
    tree.insert(path, Packed { mode, bytes });
}

fn add_folder(tree: &mut Tree, folder: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            add(tree, to.join(entry.file_name()), 0o644, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// A folder with all that is below it.
fn add_all(tree: &mut Tree, folder: &Path, to: &Path) -> anyhow::Result<()> {
    add_folder(tree, folder, to)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            add_all(tree, &entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// What one of the programs prints; it sees nothing of this environment.
fn output(program: &Path, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .env_clear()
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "oncely {}: {said}", arguments.join(" "));
    Ok(output.stdout)
}
