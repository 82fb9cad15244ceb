//! `cargo xtask docs`: writes the generated references of the book, builds the book and checks its links.

mod book;
mod command_line;
mod configuration;
mod doctor;
mod links;
mod metrics;
mod public_items;
mod reasons;
mod sql;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;

use crate::process;

/// Where the generated pages are.
const FOLDER: &str = "docs/src/reference";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Only compare the references; fail where one is stale
    #[arg(long)]
    check: bool,
    /// Leave the building of the book out: only the references
    #[arg(long)]
    no_book: bool,
}

/// A generated page.
struct Page {
    name: &'static str,
    text: String,
}

/// Writes the references anew (with `check` only compares them), then builds the book.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = process::root();
    let folder = root.join(FOLDER);
    let mut stale = Vec::new();
    for page in pages(&root).await? {
        let path = folder.join(page.name);
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        if stored == page.text {
            continue;
        }
        if arguments.check {
            stale.push(format!("{FOLDER}/{}: {}", page.name, first_difference(&stored, &page.text)));
        } else {
            std::fs::write(&path, &page.text)?;
            eprintln!("wrote {FOLDER}/{}", page.name);
        }
    }
    anyhow::ensure!(
        stale.is_empty(),
        "stale references; run `cargo xtask docs` and commit what it wrote:\n  {}",
        stale.join("\n  ")
    );
    eprintln!("the references are up to date");
    if arguments.no_book {
        return Ok(());
    }
    build_book(&root)?;
    Ok(())
}

/// Builds the book of a folder with the sources, and checks its links; returns the folder that it is in.
pub(crate) fn build_book(root: &Path) -> anyhow::Result<PathBuf> {
    let built = book::build(root)?;
    let links = links::check(&built)?;
    eprintln!("the book is in {}: {links} links lead somewhere", built.display());
    Ok(built)
}

async fn pages(root: &Path) -> anyhow::Result<Vec<Page>> {
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"));
    let catalogue = sql::catalogue(root).await?;
    let programs = process::build_binaries()?;
    Ok(vec![
        Page { name: "../../../oncely.default.toml", text: configuration::defaults(&programs)? },
        Page { name: "configuration.md", text: configuration::page(&programs)? },
        Page { name: "reason-codes.md", text: reasons::page(&read("crates/core/src/reason.rs")?)? },
        Page { name: "metrics.md", text: metrics::page(&read("crates/process/src/metrics/catalogue.rs")?)? },
        Page { name: "command-line.md", text: command_line::page(&programs)? },
        Page { name: "../how-to/doctor.md", text: doctor::page(&programs)? },
        Page { name: "sql-functions.md", text: sql::functions(&catalogue)? },
        Page { name: "sql-tables.md", text: sql::tables(&catalogue)? },
        Page { name: "rust-interface.md", text: public_items::page(root)? },
    ])
}

/// What a page begins with, so that nobody edits it by hand.
fn head(title: &str, source: &str) -> String {
    format!("<!-- Written by `cargo xtask docs` from {source}; don't edit it here. -->\n# {title}\n\n")
}

fn first_difference(stored: &str, fresh: &str) -> String {
    let at = stored.lines().zip(fresh.lines()).take_while(|(old, new)| old == new).count();
    let line = |text: &str| text.lines().nth(at).unwrap_or("(the end)").to_owned();
    format!("line {}: {:?} is to be {:?}", at + 1, line(stored), line(fresh))
}

/// A text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace(['\r', '\n'], " ")
}
