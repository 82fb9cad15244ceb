//! The URL of a server, or those of several nodes, as a table sets it: read and checked.

use std::path::PathBuf;

use secrecy::{ExposeSecret as _, SecretString};

use super::Problems;
use super::values::Urls;
use oncely_net::server_url::{AMBIGUOUS_PASSWORD, is_password_ambiguous, split_urls};
use oncely_net::tls::NOT_BUILT;
use oncely_net::url_file;

/// A URL, or those of several nodes, as configured.
#[derive(Default)]
pub(super) struct GivenUrl {
    pub(super) url: SecretString,
    /// URLs of further nodes.
    pub(super) others: Vec<SecretString>,
    /// File of the URLs; `None` if they are in the configuration itself.
    pub(super) file: Option<PathBuf>,
    /// Name of the key that sets it.
    pub(super) place: String,
    /// Whether all URLs are valid, so that more can be checked.
    pub(super) is_valid: bool,
}

/// The settings of a URL and of the file that holds it, one of which is required.
pub(super) struct UrlSetting<'a> {
    /// Name of the setting of the URL; the one of the file ends with `_file`.
    pub(super) place: &'a str,
    pub(super) schemes: &'a [&'a str],
    pub(super) example: &'a str,
    /// Environment variable that sets the URL.
    pub(super) variable: &'a str,
    /// Whether a text may hold several URLs, separated by blanks or line ends.
    pub(super) has_several: bool,
}

impl UrlSetting<'_> {
    /// Reads the URLs from one of the two settings, and checks them; both settings, or none where one is required, are a problem.
    pub(super) fn read(
        &self,
        value: Option<Urls>,
        file: Option<PathBuf>,
        problems: &mut Problems,
    ) -> GivenUrl {
        let Self { example, variable, .. } = *self;
        let split_text = |text: &SecretString| match self.has_several {
            true => split_urls(text.expose_secret()),
            false => vec![text.clone()],
        };
        let value = value.map(|value| match value {
            Urls::Text(text) => split_text(&text),
            Urls::List(urls) => urls,
        });
        let key = self.place.rsplit('.').next().unwrap_or_default();
        let place = if file.is_some() { format!("{}_file", self.place) } else { self.place.to_owned() };
        let problem_count = problems.list().len();
        let mut report = |message: String| {
            problems.add(&place, message);
            Vec::new()
        };
        let urls = match (value.filter(|urls| !urls.is_empty()), &file) {
            (None, None) => report(format!("is missing; set it (like {example}) or export {variable}")),
            (Some(_), Some(_)) => {
                report(format!("is set twice: leave out {key} or {key}_file ({variable} or {variable}_FILE)"))
            }
            (Some(urls), None) => urls,
            (None, Some(file)) => match url_file::read(file) {
                Ok(url) => split_text(&url),
                Err(error) => report(error.to_string()),
            },
        };
        for (index, url) in urls.iter().enumerate() {
            let place = if urls.len() == 1 { place.clone() } else { format!("{place}[{index}]") };
            check_url(url.expose_secret(), self.schemes, example, &place, problems);
        }
        let mut urls = urls.into_iter();
        let url = urls.next().unwrap_or_default();
        GivenUrl {
            url,
            others: urls.collect(),
            file,
            place,
            is_valid: problems.list().len() == problem_count,
        }
    }
}

/// Checks a URL. Problems don't quote it, as it may hold a password.
fn check_url(text: &str, schemes: &[&str], example: &str, place: &str, problems: &mut Problems) {
    if is_password_ambiguous(text) {
        problems.add(place, format!("has an '@' where none can be; {AMBIGUOUS_PASSWORD}"));
        return;
    }
    match url::Url::parse(text) {
        Ok(url) if url.fragment().is_some() => problems.add(place, "must not have a part behind a '#'"),
        Ok(url) if url.scheme().starts_with("amqp") && url.path() == "/" => {
            let message = "ends in a slash, and so names the virtual host \"\", which is none: leave the slash out for the default one (\"/\"), \
                        or write the name behind it";
            problems.add(place, message);
        }
        Ok(url) if url.scheme().starts_with("amqp") && url.path().trim_start_matches('/').contains('/') => {
            let message = "has a slash in or behind the name of the virtual host: leave it out, or write it as %2F where it belongs to the name";
            problems.add(place, message);
        }
        Ok(url) if schemes.contains(&url.scheme()) && (url.has_host() || url.query().is_some()) => {}
        Ok(url) if !cfg!(feature = "tls") && ["amqps", "rediss"].contains(&url.scheme()) => {
            problems.add(place, format!("{}:// {NOT_BUILT}", url.scheme()));
        }
        _ => problems.add(place, format!("is not a URL like {example}")),
    }
}
