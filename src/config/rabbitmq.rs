//! `[rabbitmq]`: where RabbitMQ is and how patient we are with it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::server_url::{AMBIGUOUS, hides_its_password, url};
use super::tls::{allow_plaintext, note, tls};
use super::{Problems, Section};
use crate::tls::{TlsError, TlsSettings, of_scheme};
use crate::url_file::{self, UrlFileError};

/// How to reach RabbitMQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RabbitSettings {
    /// `amqp://user:password@host:port/vhost`.
    pub url: SecretString,
    /// A file that holds the URL, read again for each connection; `url` is what it held at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates, for the HTTP API as well.
    pub tls: Option<TlsSettings>,
    /// Without TLS a connection may go to another machine.
    pub allow_plaintext: bool,
    /// Interval of heartbeats; a peer that is silent for two of them is gone.
    pub heartbeat: Duration,
    /// For a connection, a declaration, a confirm.
    pub timeout: Duration,
    /// `http://user:password@host:port` of the HTTP API: what AMQP does not tell is asked there. `None`: it is not asked.
    pub management: Option<SecretString>,
}

const SECOND: Duration = Duration::from_secs(1);

impl RabbitSettings {
    /// With the URL that the file holds now, where there is one.
    pub(crate) fn current(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        Ok(match &self.url_file {
            None => Cow::Borrowed(self),
            Some(file) => Cow::Owned(Self { url: url_file::read(file)?, ..self.clone() }),
        })
    }

    /// What of TLS is meant for AMQP; nothing for a connection in plaintext.
    pub(crate) fn amqp_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        self.of(&self.url, "amqps")
    }

    /// The same for the HTTP API, where there is one.
    pub(crate) fn management_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        self.management.as_ref().map_or(Ok(None), |url| self.of(url, "https"))
    }

    fn of(&self, url: &SecretString, with_tls: &str) -> Result<Option<TlsSettings>, TlsError> {
        match Url::parse(url.expose_secret()) {
            Ok(url) => of_scheme(&url, with_tls, self.tls.as_ref(), self.allow_plaintext, "rabbitmq"),
            // That is another error.
            Err(_) => Ok(None),
        }
    }
}

pub(super) fn rabbitmq(mut section: Section, problems: &mut Problems) -> RabbitSettings {
    let schemes: &[&str] = if cfg!(feature = "tls") { &["amqp", "amqps"] } else { &["amqp"] };
    let before = problems.list().len();
    let given = url(&mut section, schemes, "amqp://user:password@host:5672/vhost", "AMQP_URL", problems);
    let settings = RabbitSettings {
        url: given.url,
        url_file: given.file,
        management: management(&mut section, problems),
        tls: tls(&mut section, problems),
        allow_plaintext: allow_plaintext(&mut section, problems),
        heartbeat: section.duration("heartbeat", 10 * SECOND, SECOND..=600 * SECOND, problems),
        timeout: section.duration("timeout", 30 * SECOND, SECOND..=600 * SECOND, problems),
    };
    if problems.list().len() == before {
        let (amqp, http) = (settings.amqp_tls(), settings.management_tls());
        if settings.tls.is_some() && matches!((&amqp, &http), (Ok(None), Ok(None))) {
            let what =
                "says how TLS is done, and no URL asks for it: write amqps:// (and https:// for management)";
            problems.add(section.place("tls"), what);
        }
        note(amqp, &given.place, problems);
        note(http, &section.place("management"), problems);
    }
    section.finish(problems);
    settings
}

fn management(section: &mut Section, problems: &mut Problems) -> Option<SecretString> {
    let place = section.place("management");
    let text = section.text("management", problems)?;
    let schemes: &[&str] = if cfg!(feature = "tls") { &["http", "https"] } else { &["http"] };
    let is_fit = url::Url::parse(&text).is_ok_and(|url| schemes.contains(&url.scheme()) && url.has_host());
    if hides_its_password(&text) {
        problems.add(place, format!("has an '@' where none can be; {AMBIGUOUS}"));
    } else if !is_fit {
        let more = if cfg!(feature = "tls") { "" } else { " (https:// needs the feature `tls`)" };
        problems.add(place, format!("is not a URL like http://user:password@host:15672{more}"));
    }
    Some(SecretString::from(text))
}
