//! The URL of a server: read, checked, and shown without its password.

use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use super::{Problems, Section};
use crate::tls::NOT_BUILT;
use crate::url_file;

/// A URL without its password, for people. Where it can't be said for certain where a password ends, only its scheme.
#[must_use]
pub fn masked(url: &SecretString) -> String {
    let text = url.expose_secret();
    if hides_its_password(text) {
        let scheme =
            text.split("://").next().filter(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric()));
        return format!("{}://(not shown: {AMBIGUOUS})", scheme.unwrap_or_default());
    }
    match url::Url::parse(text) {
        Ok(mut url) => {
            if url.password().is_some() && url.set_password(Some("***")).is_err() {
                return "(not shown)".to_owned();
            }
            // A query may hold a password too (sslpassword, for one).
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        Err(_) => "(not a URL)".to_owned(),
    }
}

pub(super) const AMBIGUOUS: &str = "in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40";

/// Does an '@' stand where a host or a path should be? Then the password before it has a '/', '?', '#' or '@' that is not encoded, and
/// a parser takes its beginning for the host and the rest for something that may be shown.
pub(super) fn hides_its_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return text.contains('@') };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, more) = rest.split_at(end);
    authority.matches('@').count() > 1 || more.contains('@')
}

/// A URL as it was given.
#[derive(Default)]
pub(super) struct GivenUrl {
    pub(super) url: SecretString,
    /// Where it stands, if not in the configuration itself.
    pub(super) file: Option<PathBuf>,
    /// The key that says it.
    pub(super) place: String,
}

/// Reads `url` or `url_file`, one of which has to be there.
pub(super) fn url(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> GivenUrl {
    let text = section.text("url", problems);
    let file = section.text("url_file", problems).map(PathBuf::from);
    let place = section.place(if file.is_some() { "url_file" } else { "url" });
    let url = match (text, &file) {
        (None, None) => {
            problems.add(&place, format!("is missing; set it (like {example}) or export {variable}"));
            SecretString::default()
        }
        (Some(_), Some(_)) => {
            let what =
                format!("says it once more: leave out url or url_file ({variable} or {variable}_FILE)");
            problems.add(&place, what);
            SecretString::default()
        }
        (Some(text), None) => {
            check(&text, schemes, example, &place, problems);
            SecretString::from(text)
        }
        (None, Some(file)) => match url_file::read(file) {
            Ok(url) => {
                check(url.expose_secret(), schemes, example, &place, problems);
                url
            }
            Err(error) => {
                problems.add(&place, error.to_string());
                SecretString::default()
            }
        },
    };
    GivenUrl { url, file, place }
}

/// The text itself is not shown: it may hold a password.
fn check(text: &str, schemes: &[&str], example: &str, place: &str, problems: &mut Problems) {
    if hides_its_password(text) {
        problems.add(place, format!("has an '@' where none can be; {AMBIGUOUS}"));
        return;
    }
    match url::Url::parse(text) {
        Ok(url) if url.fragment().is_some() => problems.add(place, "must not have a part behind a '#'"),
        Ok(url) if schemes.contains(&url.scheme()) && (url.has_host() || url.query().is_some()) => {}
        Ok(url) if !cfg!(feature = "tls") && ["amqps", "rediss"].contains(&url.scheme()) => {
            problems.add(place, format!("{}:// {NOT_BUILT}", url.scheme()));
        }
        _ => problems.add(place, format!("is not a URL like {example}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_part_of_a_password_is_shown() {
        for password in [
            "S3CR3T",
            "/S3CR3T",
            "S3/CR3T",
            "1/S3CR3T",
            "1#S3CR3T",
            "1?S3CR3T",
            "S3@CR3T",
            "S3:CR3T",
            "1\\S3CR3T",
            "S3%2FCR3T",
        ] {
            for server in
                ["postgres://user:{}@host:5432/db", "amqp://user:{}@host/%2f", "redis://:{}@host:6379/0"]
            {
                let url = SecretString::from(server.replace("{}", password));
                let shown = masked(&url);
                assert!(!shown.contains("S3") && !shown.contains("CR3T"), "{password} of {server}: {shown}");
            }
        }
        for (url, shown) in [
            ("postgres://user:secret@host:5432/db?sslpassword=x#y", "postgres://user:***@host:5432/db"),
            ("amqp://host/%2f", "amqp://host/%2f"),
            (
                "postgres:///db?password=a@b",
                "postgres://(not shown: in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40)",
            ),
            ("secret", "(not a URL)"),
        ] {
            assert_eq!(masked(&SecretString::from(url.to_owned())), shown);
        }
    }
}
