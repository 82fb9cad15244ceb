//! A URL in a file, read for each connection, so that a password can be replaced while a process runs.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

/// Error of a file without a valid URL. Never quotes its content.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct UrlFileError {
    path: PathBuf,
    message: String,
}

/// Reads the URL in a file, without blanks and line ends around it.
///
/// # Errors
/// If the file can't be read, is not text, or is empty.
pub fn read(path: &Path) -> Result<SecretString, UrlFileError> {
    let to_error = |message: String| UrlFileError { path: path.to_owned(), message };
    let text = std::fs::read(path).map_err(|error| to_error(format!("can't be read: {error}")))?;
    let text = String::from_utf8(text).map_err(|_| to_error("is not text".to_owned()))?;
    match text.trim() {
        "" => Err(to_error("is empty, and should hold a URL".to_owned())),
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
        let read_text = |path: &Path| {
            read(path).map(|url| url.expose_secret().to_owned()).map_err(|error| error.to_string())
        };
        assert!(read_text(&path).unwrap_err().contains("url: can't be read: No such file"));
        for (text, expected) in
            [("amqp://h\n", Some("amqp://h")), (" amqp://h \r\n\n", Some("amqp://h")), ("\n", None)]
        {
            std::fs::write(&path, text).unwrap();
            match expected {
                Some(url) => assert_eq!(read_text(&path).unwrap(), url),
                None => assert!(read_text(&path).unwrap_err().contains("is empty"), "{text:?}"),
            }
        }
        std::fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path).unwrap_err().contains("is not text"));
    }
}
