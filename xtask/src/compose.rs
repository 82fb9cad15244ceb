//! Composes the functions of `migrations/functions`, one a file, into the migrations that name them: sqlx-cli and `oncely migrate` run plain files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;

/// Begins the copy of a function in a migration; its file's name follows.
const FROM: &str = "-- from functions/";
/// Ends the last of neighbouring copies.
const END: &str = "-- end of functions";

/// Writes stale migrations anew; with `check`, only compares and fails where one is stale.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let folder = root.join("migrations");
    let functions = sql_files(&folder.join("functions"))?;
    let mut composed = BTreeSet::new();
    // The newest first: a function that a later migration replaces stays in the earlier one as that was applied.
    for (name, text) in sql_files(&folder)?.iter().rev() {
        let fresh = compose(text, &functions, &mut composed).with_context(|| format!("migrations/{name}"))?;
        if fresh != *text {
            anyhow::ensure!(
                !check,
                "migrations/{name} is stale: run `cargo xtask prepare` and commit what it wrote"
            );
            std::fs::write(folder.join(name), fresh)?;
            eprintln!("wrote migrations/{name}");
        }
    }
    for name in functions.keys() {
        anyhow::ensure!(composed.contains(name), "no migration has a line \"{FROM}{name}\"");
    }
    Ok(())
}

/// Texts by the names of their files; files of folders below are left out.
fn sql_files(folder: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name that is not UTF-8")?;
        if name.ends_with(".sql") {
            files.insert(name.to_owned(), std::fs::read_to_string(&path)?);
        }
    }
    Ok(files)
}

/// A migration with the present text of each function that is not in `composed`, which notes it.
fn compose(
    migration: &str,
    functions: &BTreeMap<String, String>,
    composed: &mut BTreeSet<String>,
) -> anyhow::Result<String> {
    let mut text = String::new();
    let (mut is_copy, mut is_replaced) = (false, false);
    for line in migration.lines() {
        if let Some(name) = line.strip_prefix(FROM) {
            let function = functions.get(name).with_context(|| format!("there is no functions/{name}"))?;
            let created = format!("create or replace function oncely.{}(", name.trim_end_matches(".sql"));
            anyhow::ensure!(function.contains(&created), "functions/{name} has no \"{created}\"");
            (is_copy, is_replaced) = (true, composed.insert(name.to_owned()));
            text.push_str(&format!("{line}\n"));
            if is_replaced {
                text.push_str(&format!("{function}\n"));
            }
            continue;
        }
        if line == END {
            (is_copy, is_replaced) = (false, false);
        }
        let creates =
            ["create function", "create or replace function"].iter().any(|word| line.starts_with(word));
        anyhow::ensure!(is_copy || !creates, "a function belongs in a file of migrations/functions: {line}");
        if !is_replaced {
            text.push_str(&format!("{line}\n"));
        }
    }
    anyhow::ensure!(!is_copy, "\"{END}\" is missing");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_migration_alone_gets_a_function_as_it_is_now() {
        let function = "create or replace function oncely.f(a text) returns text\nas 'new';\n";
        let functions = BTreeMap::from([("f.sql".to_owned(), function.to_owned())]);
        let mut composed = BTreeSet::new();
        let stale = "create table t ();\n\n-- from functions/f.sql\nold\n\n-- end of functions\nrest\n";
        let fresh = compose(stale, &functions, &mut composed).unwrap();
        assert_eq!(fresh, stale.replace("old\n", function));
        assert_eq!(compose(&fresh, &functions, &mut BTreeSet::new()).unwrap(), fresh, "again");
        assert_eq!(compose(stale, &functions, &mut composed).unwrap(), stale, "an older one stays");
        let outside = format!("{fresh}\n{function}");
        assert!(compose(&outside, &functions, &mut BTreeSet::new()).is_err(), "a function in no file");
    }
}
