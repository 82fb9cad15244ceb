//! What other people's licences ask for: their texts and their notices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::crates::{Crate, Crates};
use super::source::Source;

/// Names of files that hold a licence or a notice begin so.
const BEGINNINGS: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// All crates with their licences, and each text once.
pub(super) fn text(source: &Source, crates: &Crates) -> anyhow::Result<String> {
    let mut texts = Texts::default();
    let mut list = String::new();
    for one in crates.others() {
        let mut numbers = Vec::new();
        for path in files(&one.folder)? {
            numbers.push(texts.number(&std::fs::read(path)?));
        }
        if numbers.is_empty() {
            // Its package has none: the licence's own words, with those who wrote the crate.
            for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
                let licence = name.strip_prefix("LICENSE-").unwrap_or(name);
                if one.license.to_uppercase().contains(licence) {
                    numbers.push(texts.number(source.text(name)?.as_bytes()));
                }
            }
        }
        anyhow::ensure!(!numbers.is_empty(), "{} {} ({}) has no text", one.name, one.version, one.license);
        list.push_str(&entry(one, &numbers));
    }
    let head = format!(
        "Oncely {} contains these crates of other people, under the licences that they name, and Rust's standard library (MIT OR Apache-2.0).\n\
         The numbers are those of the texts below.\n\n\
         The book is made with mdBook (MPL-2.0, https://github.com/rust-lang/mdBook); scripts and fonts of others in it name their licences in \
         their own files.\n\n",
        source.version
    );
    Ok(head + &list + &texts.all())
}

fn entry(one: &Crate, numbers: &[usize]) -> String {
    let numbers = numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let mut entry = format!("{} {}: {} [{numbers}]\n", one.name, one.version, one.license);
    if let Some(repository) = &one.repository {
        entry.push_str(&format!("    {repository}\n"));
    }
    if !one.authors.is_empty() {
        entry.push_str(&format!("    by {}\n", one.authors.join(", ")));
    }
    entry
}

/// Files of a crate's folder that hold a licence or a notice, by name.
fn files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
        if !BEGINNINGS.iter().any(|beginning| name.starts_with(beginning)) || name.ends_with(".RS") {
            continue;
        }
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                found.push(entry?.path());
            }
        } else {
            found.push(path);
        }
    }
    found.retain(|path| path.is_file());
    found.sort();
    Ok(found)
}

/// Texts with their numbers, from 1.
#[derive(Debug, Default)]
struct Texts {
    numbers: BTreeMap<String, usize>,
    texts: Vec<String>,
}

impl Texts {
    fn number(&mut self, text: &[u8]) -> usize {
        let text = String::from_utf8_lossy(text).replace('\r', "");
        let text = text.trim().to_owned();
        *self.numbers.entry(text.clone()).or_insert_with(|| {
            self.texts.push(text);
            self.texts.len()
        })
    }

    fn all(&self) -> String {
        let line = "=".repeat(80);
        let texts = self.texts.iter().enumerate();
        texts.map(|(index, text)| format!("\n{line}\n[{}]\n{line}\n{text}\n", index + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_there_once() {
        let mut texts = Texts::default();
        assert_eq!([&b"a\r\nb\n"[..], b"c", b"a\nb"].map(|text| texts.number(text)), [1, 2, 1]);
        assert_eq!(texts.all().matches("a\nb").count(), 1);
    }
}
