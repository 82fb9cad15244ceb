//! `[redis]` and `[mirror]`: where Redis is and how it is used.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::given_url::{GivenUrl, url};
use super::tls::{allow_plaintext, note, tls};
use super::{Problems, Section};
use crate::decide::PrecheckMode;
use crate::tls::{TlsError, TlsSettings, of_scheme};
use crate::url_file::{self, UrlFileError};

/// How to reach Redis and how to use it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MirrorSettings {
    /// `redis://host:port/database`.
    pub url: SecretString,
    /// A file that holds the URL, read again for each connection; `url` is what it held at the start.
    pub url_file: Option<PathBuf>,
    /// Certificates.
    pub tls: Option<TlsSettings>,
    /// Without TLS a connection may go to another machine.
    pub allow_plaintext: bool,
    /// How long an entry lives at the most; entries live between half of it and all of it.
    pub ttl: Duration,
    /// For the one round trip of a batch; then PostgreSQL decides alone.
    pub budget: Duration,
    /// Hash buckets per time window.
    pub buckets: u32,
    /// How much a hit is believed, unless the consumer says otherwise.
    pub precheck: PrecheckMode,
    /// Key of the tags; by default the database's own random secret.
    pub key: Option<SecretString>,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

impl MirrorSettings {
    /// With the URL that the file holds now, where there is one.
    pub(crate) fn current(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        Ok(match &self.url_file {
            None => Cow::Borrowed(self),
            Some(file) => Cow::Owned(Self { url: url_file::read(file)?, ..self.clone() }),
        })
    }

    /// What of TLS is meant; nothing for a connection in plaintext.
    pub(crate) fn redis_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        match Url::parse(self.url.expose_secret()) {
            Ok(url) => of_scheme(&url, "rediss", self.tls.as_ref(), self.allow_plaintext, "redis"),
            // That is another error.
            Err(_) => Ok(None),
        }
    }
}

pub(super) fn mirror(
    mut redis: Section,
    mut section: Section,
    problems: &mut Problems,
) -> Option<MirrorSettings> {
    let has_url = redis.has("url") || redis.has("url_file");
    let schemes: &[&str] = if cfg!(feature = "tls") { &["redis", "rediss"] } else { &["redis"] };
    // Without a Redis the settings are read all the same, so that they stay valid until there is one.
    let given = match has_url {
        true => url(&mut redis, schemes, "redis://host:6379/0", "REDIS_URL", problems),
        false => GivenUrl::default(),
    };
    let settings = MirrorSettings {
        url: given.url,
        url_file: given.file,
        tls: tls(&mut redis, problems),
        allow_plaintext: allow_plaintext(&mut redis, problems),
        ttl: section.duration("ttl", HOUR, 10 * SECOND..=30 * DAY, problems),
        budget: section.duration(
            "budget",
            Duration::from_millis(20),
            Duration::from_millis(1)..=10 * SECOND,
            problems,
        ),
        buckets: section.integer("buckets", 16_384, 1..=1_048_576, problems),
        precheck: precheck(&mut section, problems).unwrap_or(PrecheckMode::Auto),
        key: section.text("key", problems).map(|key| {
            if key.len() < 16 {
                problems.add(section.place("key"), "must have at least 16 bytes, or be left out");
            }
            SecretString::from(key)
        }),
    };
    let meant = given.is_sound.then(|| settings.redis_tls());
    if settings.tls.is_some() && matches!(meant, Some(Ok(None))) {
        problems.add(redis.place("tls"), "says how TLS is done, and the URL asks for none: write rediss://");
    }
    note(meant, &given.place, problems);
    if !has_url {
        // Known all the same.
        redis.take("url");
        redis.take("url_file");
    }
    redis.finish(problems);
    section.finish(problems);
    has_url.then_some(settings)
}

pub(super) fn precheck(section: &mut Section, problems: &mut Problems) -> Option<PrecheckMode> {
    let choices = [
        ("auto", Some(PrecheckMode::Auto)),
        ("trust", Some(PrecheckMode::Trust)),
        ("verify", Some(PrecheckMode::Verify)),
        ("off", Some(PrecheckMode::Off)),
    ];
    section.choice("precheck", None, &choices, problems)
}
