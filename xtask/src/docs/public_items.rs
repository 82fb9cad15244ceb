//! What the crate shows to the programs that embed it, as rustdoc lists it: a change of the interface is a change of this page.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Context as _;

use super::head;
use crate::process;

/// Members by the id that rustdoc gives them.
const MEMBERS: [(&str, &str); 5] = [
    ("id=\"variant.", ""),
    ("id=\"structfield.", ""),
    ("id=\"associatedconstant.", ""),
    ("id=\"tymethod.", "()"),
    ("id=\"method.", "()"),
];

/// Documents the crate as its users see it, and lists the items with their own members.
pub(super) fn page(root: &Path) -> anyhow::Result<String> {
    let quietly = ["--no-deps", "--locked", "--quiet"];
    // What their tests use, too.
    let features = ["--features", "testing,axum"];
    process::run(process::cargo(root).arg("doc").args(process::PRODUCT).args(features).args(quietly))?;
    let here = std::env::current_exe()?;
    let target = here.parent().and_then(Path::parent).context("no folder")?;
    let folder = target.join("doc").join("oncely");
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name)).with_context(|| folder.join(name).display().to_string())
    };
    let mut text = head("The Rust interface", "rustdoc");
    text.push_str(
        "All public items and their own members; what each does says `cargo doc --package oncely --no-deps --open`. Hidden modules are no part \
         of it.\n\n| item | members |\n| --- | --- |\n",
    );
    for piece in read("all.html")?.split("<li><a href=\"").skip(1) {
        let Some((file, rest)) = piece.split_once("\">") else { continue };
        let Some((name, _)) = rest.split_once("</a>") else { continue };
        // The list of headings comes first.
        if file.starts_with('#') {
            continue;
        }
        let page = read(file)?;
        // What comes after is of traits of others.
        let own = page.split("id=\"trait-implementations\"").next().unwrap_or_default();
        let own = own.split("id=\"implementors\"").next().unwrap_or_default();
        let mut members = BTreeSet::new();
        for (mark, end) in MEMBERS {
            for found in own.split(mark).skip(1) {
                let member: String = found.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                members.insert(format!("`{member}{end}`"));
            }
        }
        let kind = file.rsplit('/').next().and_then(|file| file.split('.').next()).unwrap_or_default();
        let members: Vec<String> = members.into_iter().collect();
        text.push_str(&format!("| {kind} `{name}` | {} |\n", members.join(" ")));
    }
    Ok(text)
}
