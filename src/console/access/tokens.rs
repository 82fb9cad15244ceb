//! The tokens with which people come in, from a file.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::person::{Person, Role};
use crate::config::Problems;

/// Shortest token, in characters: nobody guesses it.
const SHORTEST: usize = 24;

/// Whom a token belongs to; of the tokens themselves only hashes are kept.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Vec<(blake3::Hash, Person)>);

impl Tokens {
    /// Reads the file: `viewer` or `operator`, a name, a token, one person a line.
    ///
    /// # Errors
    /// All that is wrong with it, without a token in it.
    pub(crate) fn read(path: &Path) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let place = format!("console.tokens {}", path.display());
        let found = std::fs::metadata(path)
            .and_then(|data| Ok((data.permissions().mode(), std::fs::read_to_string(path)?)));
        let tokens = match found {
            Err(error) => {
                problems.add(place, format!("cannot be read: {error}"));
                Self::default()
            }
            Ok((mode, _)) if mode & 0o007 != 0 => {
                problems.add(place, "may be read or changed by everybody: chmod o= takes that away");
                Self::default()
            }
            Ok((_, text)) => Self::parse(&text, &place, &mut problems),
        };
        problems.or(tokens)
    }

    fn parse(text: &str, place: &str, problems: &mut Problems) -> Self {
        let mut tokens = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = format!("{place}, line {}", index + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let [role, name, token] = words[..] else {
                problems.add(place, "must be: viewer or operator, a name without spaces, a token");
                continue;
            };
            let person = Role::parse(role).and_then(|role| Person::new(name, role));
            match person {
                None => problems.add(place, "must begin with viewer or operator and a name"),
                Some(_) if token.chars().count() < SHORTEST => {
                    let what = format!(
                        "has a token of less than {SHORTEST} characters; `openssl rand -hex 24` makes one"
                    );
                    problems.add(place, what);
                }
                Some(_) if tokens.person(token).is_some() => {
                    problems.add(place, "has the token of a line before: each person needs one of their own");
                }
                Some(person) => tokens.0.push((blake3::hash(token.as_bytes()), person)),
            }
        }
        if tokens.0.is_empty() && problems.is_empty() {
            problems.add(place, "names nobody");
        }
        tokens
    }

    /// Whose token it is. Takes the same time wherever it differs from those that are known.
    pub(crate) fn person(&self, token: &str) -> Option<&Person> {
        let hash = blake3::hash(token.as_bytes());
        self.0.iter().find(|(known, _)| *known == hash).map(|(_, person)| person)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef01234567";

    fn parse(text: &str) -> Result<Tokens, String> {
        let mut problems = Problems::default();
        let tokens = Tokens::parse(text, "tokens", &mut problems);
        problems.or(tokens).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_token_is_its_persons() {
        let text = format!("# the team\nviewer ana {TOKEN}\n\noperator bo {TOKEN}x\n");
        let tokens = parse(&text).unwrap();
        assert_eq!(tokens.person(TOKEN).unwrap().name, "ana");
        assert_eq!(tokens.person(&format!("{TOKEN}x")).unwrap().role, Role::Operator);
        assert_eq!(tokens.person(&TOKEN[1..]), None);
        assert_eq!(tokens.person(""), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_line_by_line_and_shows_no_token() {
        let text = format!(
            "owner ana {TOKEN}\nviewer bo short\nviewer {TOKEN}\nviewer cy {TOKEN}\noperator di {TOKEN}\n"
        );
        let told = parse(&text).unwrap_err();
        for line in [1, 2, 3, 5] {
            assert!(told.contains(&format!("line {line}:")), "{told}");
        }
        assert!(!told.contains("line 4") && !told.contains(TOKEN), "{told}");
        assert!(parse("# nobody\n").unwrap_err().contains("names nobody"));
    }
}
