//! `[redis]` and `[mirror]`: connection and use of Redis.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

use super::given_url::{GivenUrl, url, urls_of};
use super::tls::{allow_plaintext, report_refused_connection, tls};
use super::{Problems, Section};
use oncely_core::decide::PrecheckMode;
use oncely_net::server_url::{masked, split_urls};
use oncely_net::tls::{TlsError, TlsSettings, of_scheme, refused};
use oncely_net::url_file::{self, UrlFileError};

/// Connection and use of Redis.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MirrorSettings {
    /// `redis://host:port/database`. With Sentinels the host is their name for the master.
    pub url: SecretString,
    /// File that holds the URL, read again for each connection; `url` is its content at the start.
    pub url_file: Option<PathBuf>,
    /// `redis://:password@host:26379` of the Sentinels; empty if `url` names the server itself.
    pub sentinels: Vec<SecretString>,
    /// File that holds them, read again for each connection; `sentinels` is its content at the start.
    pub sentinels_file: Option<PathBuf>,
    /// Certificates.
    pub tls: Option<TlsSettings>,
    /// Whether a connection to another machine may go without TLS.
    pub allow_plaintext: bool,
    /// Maximum lifetime of an entry; entries live between half of it and all of it.
    pub ttl: Duration,
    /// Limit of the one round trip of a batch; past it PostgreSQL decides alone.
    pub budget: Duration,
    /// Number of hash buckets per time window.
    pub buckets: u32,
    /// Trust in a hit, unless the consumer overrides it.
    pub precheck: PrecheckMode,
    /// Key of the tags; by default the database's random secret.
    pub key: Option<SecretString>,
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

impl MirrorSettings {
    /// Returns settings for the Redis at this URL, with defaults otherwise.
    #[doc(hidden)]
    pub fn at(url: SecretString) -> Self {
        Self {
            url,
            url_file: None,
            sentinels: Vec::new(),
            sentinels_file: None,
            tls: None,
            allow_plaintext: false,
            ttl: HOUR,
            budget: Duration::from_millis(20),
            buckets: 16_384,
            precheck: PrecheckMode::Auto,
            key: None,
        }
    }

    /// Returns the settings with the current URLs from the files, if any.
    #[doc(hidden)]
    pub fn current(&self) -> Result<Cow<'_, Self>, UrlFileError> {
        let mut now = Cow::Borrowed(self);
        if let Some(file) = &self.url_file {
            now.to_mut().url = url_file::read(file)?;
        }
        if let Some(file) = &self.sentinels_file {
            now.to_mut().sentinels = split_urls(url_file::read(file)?.expose_secret());
        }
        Ok(now)
    }

    /// Returns the TLS settings for the server; `None` for a plaintext connection.
    #[doc(hidden)]
    pub fn redis_tls(&self) -> Result<Option<TlsSettings>, TlsError> {
        match Url::parse(self.url.expose_secret()) {
            // The Sentinels may name a master on another machine.
            Ok(url) if !self.sentinels.is_empty() && url.scheme() != "rediss" && !self.allow_plaintext => {
                let whom = format!("the master {}", url.host_str().unwrap_or_default());
                Err(TlsError::Refused(refused(&whom, "rediss://", "redis")))
            }
            Ok(url) => of_scheme(&url, "rediss", self.tls.as_ref(), self.allow_plaintext, "redis"),
            // Reported elsewhere.
            Err(_) => Ok(None),
        }
    }

    /// Returns the TLS settings for a Sentinel, which is addressed by the host of its own URL and must have that name.
    #[doc(hidden)]
    pub fn sentinel_tls(&self, url: &SecretString) -> Result<Option<TlsSettings>, TlsError> {
        let own = self.tls.clone().map(|tls| TlsSettings { server_name: None, ..tls });
        match Url::parse(url.expose_secret()) {
            Ok(url) => of_scheme(&url, "rediss", own.as_ref(), self.allow_plaintext, "redis"),
            Err(_) => Ok(None),
        }
    }

    /// Returns Redis's location, without passwords.
    #[doc(hidden)]
    pub fn shown(&self) -> String {
        let url = masked(&self.url);
        match self.sentinels.is_empty() {
            true => url,
            false => {
                let sentinels: Vec<String> = self.sentinels.iter().map(masked).collect();
                format!("{url}, as {} say", sentinels.join(" "))
            }
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
    let sentinels = urls_of(
        &mut redis,
        ["sentinels", "sentinels_file"],
        schemes,
        "redis://:password@host:26379",
        problems,
    );
    // Settings are read also without a Redis, so that they stay valid.
    let given = match (has_url, &sentinels) {
        (true, None) => url(&mut redis, schemes, "redis://host:6379/0", "REDIS_URL", problems),
        (_, Some(_)) => url(&mut redis, schemes, "redis://:password@mymaster/0", "REDIS_URL", problems),
        (false, None) => GivenUrl::default(),
    };
    let are_asked = sentinels.is_some();
    let sentinels = sentinels.unwrap_or_default();
    let settings = MirrorSettings {
        url: given.url,
        url_file: given.file,
        sentinels: std::iter::once(sentinels.url).chain(sentinels.others).filter(|_| are_asked).collect(),
        sentinels_file: sentinels.file,
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
    let asked: Vec<_> = match sentinels.is_sound {
        true => settings.sentinels.iter().map(|url| settings.sentinel_tls(url)).collect(),
        false => Vec::new(),
    };
    let is_without = |meant: &Result<Option<TlsSettings>, TlsError>| matches!(meant, Ok(None));
    if settings.tls.is_some()
        && meant.as_ref().is_some_and(is_without)
        && asked.iter().all(is_without)
        && (!are_asked || sentinels.is_sound)
    {
        problems.add(redis.place("tls"), "says how TLS is done, and no URL asks for it: write rediss://");
    }
    report_refused_connection(meant, &given.place, problems);
    for meant in asked {
        report_refused_connection(Some(meant), &sentinels.place, problems);
    }
    if given.is_sound && sentinels.is_sound {
        by_name(&settings, &given.place, &sentinels.place, problems);
    }
    if !has_url {
        // Both keys are known nevertheless.
        redis.take("url");
        redis.take("url_file");
    }
    redis.finish(problems);
    section.finish(problems);
    has_url.then_some(settings)
}

/// Checks URLs with Sentinels: the URL's host is a name, and the Sentinels' URLs end with the port.
fn by_name(settings: &MirrorSettings, place: &str, of_sentinels: &str, problems: &mut Problems) {
    let port = |url: &SecretString| Url::parse(url.expose_secret()).ok().and_then(|url| url.port());
    if port(&settings.url).is_some() {
        let what = "has a port: with sentinels its host is the name of the master as they know it, and they say where that is";
        problems.add(place, format!("{what} (redis://:password@mymaster/0)"));
    }
    let has_more = |url: &SecretString| {
        Url::parse(url.expose_secret())
            .is_ok_and(|url| !["", "/"].contains(&url.path()) || url.query().is_some())
    };
    if settings.sentinels.iter().any(has_more) {
        problems.add(of_sentinels, "has a database or options behind a host: a Sentinel has none");
    }
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
