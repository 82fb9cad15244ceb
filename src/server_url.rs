//! The URL of a server, or those of several: shown without passwords, and told apart.

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

/// A URL without its password, for people. Where it can't be said for certain where a password ends, only its scheme.
#[must_use]
pub fn masked(url: &SecretString) -> String {
    let text = url.expose_secret();
    if hides_its_password(text) {
        let scheme =
            text.split("://").next().filter(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric()));
        return format!("{}://(not shown: {AMBIGUOUS})", scheme.unwrap_or_default());
    }
    match Url::parse(text) {
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

pub(crate) const AMBIGUOUS: &str = "in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40";

/// Does an '@' stand where a host or a path should be? Then the password before it has a '/', '?', '#' or '@' that is not encoded, and
/// a parser takes its beginning for the host and the rest for something that may be shown.
pub(crate) fn hides_its_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return text.contains('@') };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, more) = rest.split_at(end);
    authority.matches('@').count() > 1 || more.contains('@')
}

/// The URLs of a text: none has a blank in it. One at least, though it may be empty.
pub(crate) fn several(text: &str) -> Vec<SecretString> {
    pieces(text).into_iter().map(SecretString::from).collect()
}

/// A text that has blanks and is no list of URLs is one, and a wrong one: a password may have been cut in two.
fn pieces(text: &str) -> Vec<&str> {
    let pieces: Vec<&str> = text.split_whitespace().collect();
    let with_login = pieces.iter().filter(|piece| piece.contains('@')).count();
    let are_alike = with_login == 0 || with_login == pieces.len();
    if !pieces.is_empty() && are_alike && pieces.iter().all(|piece| piece.contains("://")) {
        pieces
    } else {
        vec![text]
    }
}

/// A text that may hold several URLs, without their passwords.
pub(crate) fn masked_all(text: &str) -> String {
    pieces(text).into_iter().map(|url| masked(&SecretString::from(url))).collect::<Vec<_>>().join(" ")
}

/// A text without who logs in, where a URL in it says so: from `://` to the last `@` of the word, since a password may hold anything.
pub(crate) fn without_logins(text: &str, instead: &str) -> String {
    let word = |word: &str| match (word.find("://"), word.rfind('@')) {
        (Some(from), Some(to)) if from + 3 <= to => format!("{}{instead}{}", &word[..from + 3], &word[to..]),
        _ => word.to_owned(),
    };
    text.split_inclusive(char::is_whitespace).map(word).collect()
}

/// Do these URLs differ by host and port alone? Then they are several hosts of one service.
pub(crate) fn differ_by_host_alone<'a>(urls: impl IntoIterator<Item = &'a SecretString>) -> bool {
    let without_host = |url: &SecretString| {
        let mut url = Url::parse(url.expose_secret()).ok()?;
        url.set_host(Some("localhost")).ok()?;
        url.set_port(None).ok()?;
        Some(url)
    };
    let mut urls = urls.into_iter().map(without_host);
    match urls.next() {
        None => true,
        Some(first) => urls.all(|url| url == first),
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
        for (urls, shown) in [
            ("amqp://u:S3@a/%2f amqp://u:CR3T@b:1/%2f\n", "amqp://u:***@a/%2f amqp://u:***@b:1/%2f"),
            ("amqp://a amqp://b", "amqp://a amqp://b"),
            // A password with a blank in it is no list.
            ("amqp://u:12 34@a", "amqp://u:***@a"),
            (
                "amqp://u:12 amqp://34@a",
                "amqp://(not shown: in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40)",
            ),
        ] {
            assert_eq!(masked_all(urls), shown);
        }
    }

    #[test]
    fn a_login_in_a_url_is_hidden_wherever_it_stands() {
        for (text, told) in [
            ("at postgres://u:p@h/d: gone", "at postgres://(masked)@h/d: gone"),
            ("amqp://u:p@s/s\"w@h and http://h/a", "amqp://(masked)@h and http://h/a"),
            ("http://h a@b", "http://h a@b"),
            ("a@b://c", "a@b://c"),
        ] {
            assert_eq!(without_logins(text, "(masked)"), told);
        }
    }
}
