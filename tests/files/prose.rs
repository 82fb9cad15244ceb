//! The comments of the product: plain subjects, and a count that may only fall.

use regex::Regex;

use crate::sources::sources;

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
    assert!(marked.len() <= MOST, "{} lines:\n{}", marked.len(), marked.join("\n"));
}
