//! The comments and documents of the product: plain subjects, and counts that may only fall.

use regex::Regex;

use crate::sources::{root, sources};

/// Lines of comments that may hold one of the words of [`MARKS`]: where the word is the plain one. Lower it when it falls.
const MOST: usize = 10;

/// Words that stand for the thing that a comment should name, and turns of phrase that nobody looks for.
const MARKS: &str = r"(?i-u)\b(?:what(?:ever)?|whoever|whose|somebody|someone|nobody|anybody|said|told|heard|as it is|so many|of before|is none)\b";

#[test]
fn comments_name_what_they_are_about() {
    let marks = Regex::new(MARKS).unwrap();
    let (mut lines, mut marked) = (0, Vec::new());
    for path in sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            lines += 1;
            let is_question = comment.starts_with(['/', '!']) && comment.ends_with('?');
            if is_question || marks.is_match(comment) {
                marked.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(lines > 5_000, "{lines}");
    let rule = "comments name their subject; one more of these lines is new";
    assert!(marked.len() <= MOST, "{rule}: {} lines, at most {MOST}:\n{}", marked.len(), marked.join("\n"));
}

/// Lines of documents that may hold one of the words of [`ACTORS`]: `oncely migrate plan` says whom a lock keeps waiting. Lower it when it
/// falls.
const MAX_IN_DOCUMENTS: usize = 1;

/// Words that leave the reader to guess who acts.
const ACTORS: &str = r"(?i-u)\b(?:whoever|somebody|someone|nobody|anybody)\b";

#[test]
fn documents_name_who_acts() {
    let actors = Regex::new(ACTORS).unwrap();
    let (mut lines, mut marked) = (0, Vec::new());
    let mut folders = vec![root().join("docs/src")];
    let mut files: Vec<_> = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"]
        .map(|name| root().join(name))
        .into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    for path in files {
        for (at, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
            lines += 1;
            if actors.is_match(line) {
                marked.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(lines > 5_000, "{lines}");
    assert!(marked.len() <= MAX_IN_DOCUMENTS, "{} lines:\n{}", marked.len(), marked.join("\n"));
}
