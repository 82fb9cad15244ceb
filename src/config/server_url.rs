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

/// A URL, or those of several nodes, as it was given.
#[derive(Default)]
pub(super) struct GivenUrl {
    pub(super) url: SecretString,
    /// Those of further nodes.
    pub(super) others: Vec<SecretString>,
    /// Where they stand, if not in the configuration itself.
    pub(super) file: Option<PathBuf>,
    /// The key that says it.
    pub(super) place: String,
    /// Nothing is wrong with it: more may be said of it.
    pub(super) is_sound: bool,
}

/// Reads `url` or `url_file`, one of which has to be there.
pub(super) fn url(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> GivenUrl {
    let given = section.text("url", problems).map(|text| vec![SecretString::from(text)]);
    let one = |text: &str| vec![SecretString::from(text)];
    read(section, given, one, &Wanted { schemes, example, variable }, problems)
}

/// The same where there may be several: as a list, or with blanks or line ends in between.
pub(super) fn urls(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> GivenUrl {
    let given = match section.has_list("url") {
        true => {
            section.texts("url", problems).map(|texts| texts.into_iter().map(SecretString::from).collect())
        }
        false => section.text("url", problems).map(|text| several(&text)),
    };
    read(section, given, several, &Wanted { schemes, example, variable }, problems)
}

/// The URLs of a text: none has a blank in it. One at least, though it may be empty.
pub(super) fn several(text: &str) -> Vec<SecretString> {
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
pub(super) fn masked_all(text: &str) -> String {
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

struct Wanted<'a> {
    schemes: &'a [&'a str],
    example: &'a str,
    variable: &'a str,
}

fn read(
    section: &mut Section,
    given: Option<Vec<SecretString>>,
    of_file: impl Fn(&str) -> Vec<SecretString>,
    wanted: &Wanted<'_>,
    problems: &mut Problems,
) -> GivenUrl {
    let Wanted { example, variable, .. } = wanted;
    let file = section.text("url_file", problems).map(PathBuf::from);
    let place = section.place(if file.is_some() { "url_file" } else { "url" });
    let before = problems.list().len();
    let mut wrong = |what: String| {
        problems.add(&place, what);
        Vec::new()
    };
    let urls = match (given.filter(|urls| !urls.is_empty()), &file) {
        (None, None) => wrong(format!("is missing; set it (like {example}) or export {variable}")),
        (Some(_), Some(_)) => {
            wrong(format!("says it once more: leave out url or url_file ({variable} or {variable}_FILE)"))
        }
        (Some(urls), None) => urls,
        (None, Some(file)) => match url_file::read(file) {
            Ok(url) => of_file(url.expose_secret()),
            Err(error) => wrong(error.to_string()),
        },
    };
    for (index, url) in urls.iter().enumerate() {
        let place = if urls.len() == 1 { place.clone() } else { format!("{place}[{index}]") };
        check(url.expose_secret(), wanted.schemes, example, &place, problems);
    }
    let mut urls = urls.into_iter();
    let url = urls.next().unwrap_or_default();
    GivenUrl { url, others: urls.collect(), file, place, is_sound: problems.list().len() == before }
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
