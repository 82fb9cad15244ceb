//! The URL of a server, or those of several nodes, as a section sets it: read and checked.

use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use super::{Problems, Section};
use oncely_net::server_url::{AMBIGUOUS, hides_its_password, split_urls};
use oncely_net::tls::NOT_BUILT;
use oncely_net::url_file;

/// A URL, or those of several nodes, as configured.
#[derive(Default)]
pub(super) struct GivenUrl {
    pub(super) url: SecretString,
    /// URLs of further nodes.
    pub(super) others: Vec<SecretString>,
    /// File of the URLs, if they are not in the configuration itself.
    pub(super) file: Option<PathBuf>,
    /// Name of the key that sets it.
    pub(super) place: String,
    /// Whether it is valid, so that more can be checked.
    pub(super) is_sound: bool,
}

/// Reads `url` or `url_file`, one of which is required.
pub(super) fn url(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> GivenUrl {
    let given = section.text("url", problems).map(|text| vec![SecretString::from(text)]);
    let one = |text: &str| vec![SecretString::from(text)];
    read(section, given, one, &UrlSetting { keys: ["url", "url_file"], schemes, example, variable }, problems)
}

/// Reads one or several URLs: a list, or text separated by blanks or line ends.
pub(super) fn urls(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> GivenUrl {
    read_urls(section, &UrlSetting { keys: ["url", "url_file"], schemes, example, variable }, problems)
}

/// Reads them under other keys; empty if neither is set.
pub(super) fn urls_of(
    section: &mut Section,
    keys: [&'static str; 2],
    schemes: &[&str],
    example: &str,
    problems: &mut Problems,
) -> Option<GivenUrl> {
    let variable = format!("ONCELY_{}", section.place(keys[0]).to_ascii_uppercase().replace('.', "__"));
    let is_given = keys.iter().any(|key| section.has(key));
    if !is_given {
        // Both keys are known nevertheless.
        keys.iter().for_each(|key| drop(section.take(key)));
        return None;
    }
    Some(read_urls(section, &UrlSetting { keys, schemes, example, variable: &variable }, problems))
}

fn read_urls(section: &mut Section, wanted: &UrlSetting<'_>, problems: &mut Problems) -> GivenUrl {
    let [key, _] = wanted.keys;
    let given = match section.has_list(key) {
        true => section.texts(key, problems).map(|texts| texts.into_iter().map(SecretString::from).collect()),
        false => section.text(key, problems).map(|text| split_urls(&text)),
    };
    read(section, given, split_urls, wanted, problems)
}

struct UrlSetting<'a> {
    /// Keys of the URL and of the file that holds it.
    keys: [&'static str; 2],
    schemes: &'a [&'a str],
    example: &'a str,
    variable: &'a str,
}

fn read(
    section: &mut Section,
    given: Option<Vec<SecretString>>,
    of_file: impl Fn(&str) -> Vec<SecretString>,
    wanted: &UrlSetting<'_>,
    problems: &mut Problems,
) -> GivenUrl {
    let UrlSetting { keys: [key, in_file], example, variable, .. } = *wanted;
    let file = section.text(in_file, problems).map(PathBuf::from);
    let place = section.place(if file.is_some() { in_file } else { key });
    let before = problems.list().len();
    let mut wrong = |what: String| {
        problems.add(&place, what);
        Vec::new()
    };
    let urls = match (given.filter(|urls| !urls.is_empty()), &file) {
        (None, None) => wrong(format!("is missing; set it (like {example}) or export {variable}")),
        (Some(_), Some(_)) => {
            wrong(format!("says it once more: leave out {key} or {in_file} ({variable} or {variable}_FILE)"))
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

/// Checks a URL. Problems don't quote it, as it may hold a password.
fn check(text: &str, schemes: &[&str], example: &str, place: &str, problems: &mut Problems) {
    if hides_its_password(text) {
        problems.add(place, format!("has an '@' where none can be; {AMBIGUOUS}"));
        return;
    }
    match url::Url::parse(text) {
        Ok(url) if url.fragment().is_some() => problems.add(place, "must not have a part behind a '#'"),
        Ok(url) if url.scheme().starts_with("amqp") && url.path() == "/" => {
            let what = "ends in a slash, and so names the virtual host \"\", which is none: leave the slash out for the default one (\"/\"), \
                        or write the name behind it";
            problems.add(place, what);
        }
        Ok(url) if url.scheme().starts_with("amqp") && url.path().trim_start_matches('/').contains('/') => {
            let what = "has a slash in or behind the name of the virtual host: leave it out, or write it as %2F where it belongs to the name";
            problems.add(place, what);
        }
        Ok(url) if schemes.contains(&url.scheme()) && (url.has_host() || url.query().is_some()) => {}
        Ok(url) if !cfg!(feature = "tls") && ["amqps", "rediss"].contains(&url.scheme()) => {
            problems.add(place, format!("{}:// {NOT_BUILT}", url.scheme()));
        }
        _ => problems.add(place, format!("is not a URL like {example}")),
    }
}
