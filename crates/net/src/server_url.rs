//! URLs of one or several servers: shown without passwords, and compared.

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

/// Masks the password of a URL, and leaves out its query, for output. If the end of the password is ambiguous, only the scheme is shown.
#[must_use]
pub fn mask_url(url: &SecretString) -> String {
    let text = url.expose_secret();
    if is_password_ambiguous(text) {
        let scheme =
            text.split("://").next().filter(|scheme| scheme.chars().all(|c| c.is_ascii_alphanumeric()));
        return format!("{}://(not shown: {AMBIGUOUS_PASSWORD})", scheme.unwrap_or_default());
    }
    match Url::parse(text) {
        Ok(mut url) => {
            if url.password().is_some() && url.set_password(Some("***")).is_err() {
                return "(not shown)".to_owned();
            }
            // A query may hold a password, too, such as sslpassword.
            url.set_query(None);
            url.set_fragment(None);
            url.to_string()
        }
        Err(_) => "(not a URL)".to_owned(),
    }
}

/// Advice for a password with an ambiguous end.
pub const AMBIGUOUS_PASSWORD: &str = "in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40";

/// Returns whether the end of a password is ambiguous: an '@' is in place of a host or a path. Then the password before it has a '/', '?',
/// '#' or '@' that is not encoded, and a parser takes its beginning for the host and the rest for parts that may be shown.
pub fn is_password_ambiguous(text: &str) -> bool {
    let Some((_, remainder)) = text.split_once("://") else { return text.contains('@') };
    let end = remainder.find(['/', '?', '#', '\\']).unwrap_or(remainder.len());
    let (authority, path) = remainder.split_at(end);
    authority.matches('@').count() > 1 || path.contains('@')
}

/// Splits a text into its URLs, which contain no blanks. Returns at least one, which may be empty.
pub fn split_urls(text: &str) -> Vec<SecretString> {
    split(text).into_iter().map(SecretString::from).collect()
}

/// Splits a list of URLs. A text with blanks that is not such a list is one invalid URL, as a blank may divide a password.
fn split(text: &str) -> Vec<&str> {
    let pieces: Vec<&str> = text.split_whitespace().collect();
    let with_login = pieces.iter().filter(|piece| piece.contains('@')).count();
    let are_alike = with_login == 0 || with_login == pieces.len();
    if !pieces.is_empty() && are_alike && pieces.iter().all(|piece| piece.contains("://")) {
        pieces
    } else {
        vec![text]
    }
}

/// Masks the passwords in a text of one or several URLs.
pub fn mask_urls(text: &str) -> String {
    split(text).into_iter().map(|url| mask_url(&SecretString::from(url))).collect::<Vec<_>>().join(" ")
}

/// Replaces user and password of URLs in a text: from `://` to the last `@` of the word, since a password may hold any character.
pub fn mask_logins(text: &str, replacement: &str) -> String {
    let mask_word = |word: &str| match (word.find("://"), word.rfind('@')) {
        (Some(from), Some(to)) if from + 3 <= to => {
            format!("{}{replacement}{}", &word[..from + 3], &word[to..])
        }
        _ => word.to_owned(),
    };
    text.split_inclusive(char::is_whitespace).map(mask_word).collect()
}

/// Returns whether these URLs differ only by host and port, so that they are hosts of one service.
pub fn differ_by_host_alone<'a>(urls: impl IntoIterator<Item = &'a SecretString>) -> bool {
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

/// Returns a URL with another host and port, and the same login, path and options; `None` if the URL or the host is invalid.
#[must_use]
pub fn with_host(url: &SecretString, host: &str, port: u16) -> Option<SecretString> {
    let mut url = Url::parse(url.expose_secret()).ok()?;
    let is_address_of_six = host.contains(':') && !host.starts_with('[');
    url.set_host(Some(&if is_address_of_six { format!("[{host}]") } else { host.to_owned() })).ok()?;
    url.set_port(Some(port)).ok()?;
    // Options of libpq that would take precedence.
    let is_place = |name: &str| matches!(name, "host" | "hostaddr" | "port");
    let options: Vec<_> = url
        .query_pairs()
        .filter(|(name, _)| !is_place(name))
        .map(|pair| (pair.0.into_owned(), pair.1.into_owned()))
        .collect();
    url.set_query(None);
    if !options.is_empty() {
        url.query_pairs_mut().extend_pairs(options);
    }
    Some(String::from(url).into())
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
                let shown = mask_url(&url);
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
            assert_eq!(mask_url(&SecretString::from(url.to_owned())), shown);
        }
        for (urls, shown) in [
            ("amqp://u:S3@a/%2f amqp://u:CR3T@b:1/%2f\n", "amqp://u:***@a/%2f amqp://u:***@b:1/%2f"),
            ("amqp://a amqp://b", "amqp://a amqp://b"),
            // A password with a blank in it is not a list.
            ("amqp://u:12 34@a", "amqp://u:***@a"),
            (
                "amqp://u:12 amqp://34@a",
                "amqp://(not shown: in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40)",
            ),
        ] {
            assert_eq!(mask_urls(urls), shown);
        }
    }

    #[test]
    fn a_url_is_moved_to_another_host_with_its_login_and_options() {
        for (url, moved) in [
            (
                "postgres://u:p%2F@a:1/d?sslmode=require&host=/run&port=2",
                "postgres://u:p%2F@b:5433/d?sslmode=require",
            ),
            ("postgresql://u@[::1]/d", "postgresql://u@b:5433/d"),
            ("postgres://u@a/d", "postgres://u@b:5433/d"),
        ] {
            let found = with_host(&SecretString::from(url.to_owned()), "b", 5433).unwrap();
            assert_eq!(found.expose_secret(), moved);
        }
        let six = with_host(&SecretString::from("postgres://u@a/d".to_owned()), "fd00::1", 5432).unwrap();
        assert_eq!(six.expose_secret(), "postgres://u@[fd00::1]:5432/d");
        assert!(with_host(&SecretString::from("secret".to_owned()), "b", 1).is_none());
    }

    #[test]
    fn a_login_in_a_url_is_hidden_wherever_it_stands() {
        for (text, masked) in [
            ("at postgres://u:p@h/d: gone", "at postgres://(masked)@h/d: gone"),
            ("amqp://u:p@s/s\"w@h and http://h/a", "amqp://(masked)@h and http://h/a"),
            ("http://h a@b", "http://h a@b"),
            ("a@b://c", "a@b://c"),
        ] {
            assert_eq!(mask_logins(text, "(masked)"), masked);
        }
    }
}
