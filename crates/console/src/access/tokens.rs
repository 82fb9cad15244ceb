//! Sign-in tokens, from a file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::private::{self, FileVersion};
use super::user::{ConsoleRole, User};
use oncely_config::Problems;

/// Minimum length of a token, in characters, so that it can't be guessed.
const MIN_LENGTH: usize = 24;

/// Holds the tokens of a file, which is read again after each change: a removed user is signed out at the next request.
pub(crate) struct TokenFile {
    path: PathBuf,
    cache: Mutex<(FileVersion, Arc<AccessTokens>)>,
}

impl TokenFile {
    /// Opens a token file.
    ///
    /// # Errors
    /// If the file is invalid; the text contains no token.
    pub(crate) fn open(path: &Path) -> Result<Self, Problems> {
        let cache = AccessTokens::read(path)?;
        Ok(Self { path: path.to_owned(), cache: Mutex::new(cache) })
    }

    /// Returns the current tokens; reads the file again if it has changed. An invalid file lets no user in until it is fixed.
    pub(crate) fn read_tokens(&self) -> Arc<AccessTokens> {
        let version = FileVersion::read(&self.path);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(version) = version else { return Arc::default() };
        if cache.0 != version {
            *cache = AccessTokens::read(&self.path).unwrap_or_else(|problems| {
                tracing::error!("console.tokens is invalid; no sign-in until it is fixed: {problems}");
                (version, Arc::default())
            });
        }
        Arc::clone(&cache.1)
    }
}

/// Owners of tokens; only hashes of the tokens are kept.
#[derive(Debug, Default)]
pub(crate) struct AccessTokens(Vec<(blake3::Hash, User)>);

impl AccessTokens {
    /// Reads the file: `viewer` or `operator`, a name, a token, one user per line.
    ///
    /// # Errors
    /// If the file is invalid; the text contains no token.
    fn read(path: &Path) -> Result<(FileVersion, Arc<Self>), Problems> {
        let mut problems = Problems::default();
        let place = format!("console.tokens {}", path.display());
        match private::read(path) {
            Err(what) => {
                problems.add(place, what);
                Err(problems)
            }
            Ok((version, text)) => {
                let tokens = Self::parse(&text, &place, &mut problems);
                problems.into_result((version, Arc::new(tokens)))
            }
        }
    }

    /// Parses the lines of a token file: viewer or operator, a name, a token.
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
            let user = ConsoleRole::parse(role).and_then(|role| User::new(name, role));
            match user {
                None => problems.add(place, "must begin with viewer or operator and a name"),
                Some(_) if token.chars().count() < MIN_LENGTH => {
                    let what = format!(
                        "has a token of less than {MIN_LENGTH} characters; `openssl rand -hex 24` makes one"
                    );
                    problems.add(place, what);
                }
                Some(_) if tokens.find_user(token).is_some() => {
                    problems.add(place, "has the token of a line before: each user needs one of their own");
                }
                Some(user) => tokens.0.push((blake3::hash(token.as_bytes()), user)),
            }
        }
        if tokens.0.is_empty() && problems.is_empty() {
            problems.add(place, "has no tokens");
        }
        tokens
    }

    /// Finds the owner of a token, in constant time for all unknown tokens; `None` for those.
    pub(crate) fn find_user(&self, token: &str) -> Option<&User> {
        self.find_entry(token).map(|(_, user)| user)
    }

    /// Finds the owner of a token, with the token's hash; `None` for an unknown token.
    pub(crate) fn find_entry(&self, token: &str) -> Option<&(blake3::Hash, User)> {
        let hash = blake3::hash(token.as_bytes());
        self.0.iter().find(|(known, _)| *known == hash)
    }

    /// Finds the owner of the first token with a hash that satisfies the predicate; `None` if none does.
    pub(crate) fn find_by_hash(&self, predicate: impl Fn(&blake3::Hash) -> bool) -> Option<&User> {
        self.0.iter().find(|(known, _)| predicate(known)).map(|(_, user)| user)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef01234567";

    fn parse(text: &str) -> Result<AccessTokens, String> {
        let mut problems = Problems::default();
        let tokens = AccessTokens::parse(text, "tokens", &mut problems);
        problems.into_result(tokens).map_err(|problems| problems.to_string())
    }

    #[test]
    fn a_token_is_its_persons() {
        let text = format!("# the team\nviewer ana {TOKEN}\n\noperator bo {TOKEN}x\n");
        let tokens = parse(&text).unwrap();
        assert_eq!(tokens.find_user(TOKEN).unwrap().name, "ana");
        assert_eq!(tokens.find_user(&format!("{TOKEN}x")).unwrap().role, ConsoleRole::Operator);
        assert_eq!(tokens.find_user(&TOKEN[1..]), None);
        assert_eq!(tokens.find_user(""), None);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_line_by_line_and_shows_no_token() {
        let text = format!(
            "owner ana {TOKEN}\nviewer bo short\nviewer {TOKEN}\nviewer cy {TOKEN}\noperator di {TOKEN}\n"
        );
        let error = parse(&text).unwrap_err();
        for line in [1, 2, 3, 5] {
            assert!(error.contains(&format!("line {line}:")), "{error}");
        }
        assert!(!error.contains("line 4") && !error.contains(TOKEN), "{error}");
        assert!(parse("# nobody\n").unwrap_err().contains("has no tokens"));
    }

    #[test]
    fn a_file_that_its_group_may_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, format!("viewer ana {TOKEN}\n")).unwrap();
        for (mode, is_good) in [(0o600, true), (0o640, true), (0o660, false), (0o620, false), (0o604, false)]
        {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(TokenFile::open(&file).is_ok(), is_good, "{mode:o}");
        }
    }

    #[test]
    fn whoever_is_taken_out_of_the_file_is_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        };
        write(&format!("viewer ana {TOKEN}\noperator bo {TOKEN}x\n"));
        let file = TokenFile::open(&path).unwrap();
        let known = |token: &str| file.read_tokens().find_user(token).map(|user| user.role);
        assert_eq!(
            (known(TOKEN), known(&format!("{TOKEN}x"))),
            (Some(ConsoleRole::Viewer), Some(ConsoleRole::Operator))
        );
        write(&format!("operator ana {TOKEN}\n"));
        assert_eq!((known(TOKEN), known(&format!("{TOKEN}x"))), (Some(ConsoleRole::Operator), None));
        write("operator\n");
        assert_eq!(known(TOKEN), None, "it is wrong now");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(known(TOKEN), None);
        write(&format!("viewer ana {TOKEN}\n"));
        assert_eq!(known(TOKEN), Some(ConsoleRole::Viewer));
    }
}
