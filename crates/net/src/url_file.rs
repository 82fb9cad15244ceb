//! A URL in a file, read for each connection, so that a password can be replaced while a process runs.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

/// If a file holds no valid URL. Never quotes its content.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct UrlFileError {
    path: PathBuf,
    what: String,
}

/// Returns the file's current URL, without blanks and line ends around it.
pub fn read(path: &Path) -> Result<SecretString, UrlFileError> {
    let wrong = |what: String| UrlFileError { path: path.to_owned(), what };
    let text = std::fs::read(path).map_err(|error| wrong(format!("can't be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| wrong("is not text".to_owned()))?;
    match text.trim() {
        "" => Err(wrong("is empty, and should hold a URL".to_owned())),
        url => Ok(SecretString::from(url)),
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_url_is_what_stands_between_the_blanks_and_an_empty_file_holds_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("url");
        let told = |path: &Path| {
            read(path).map(|url| url.expose_secret().to_owned()).map_err(|error| error.to_string())
        };
        assert!(told(&path).unwrap_err().contains("url: can't be read: No such file"));
        for (text, expected) in
            [("amqp://h\n", Some("amqp://h")), (" amqp://h \r\n\n", Some("amqp://h")), ("\n", None)]
        {
            std::fs::write(&path, text).unwrap();
            match expected {
                Some(url) => assert_eq!(told(&path).unwrap(), url),
                None => assert!(told(&path).unwrap_err().contains("is empty"), "{text:?}"),
            }
        }
        std::fs::write(&path, b"\xff").unwrap();
        assert!(told(&path).unwrap_err().contains("is not text"));
    }
}
