//! `[postgres]`, `[rabbitmq]`, `[redis]` and `[mirror]`: where the servers are and how patient we are with them.

use std::str::FromStr as _;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::{Problems, Section};
use crate::decide::PrecheckMode;
use crate::pg::PgSettings;

/// How to reach RabbitMQ.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RabbitSettings {
    /// `amqp://user:password@host:port/vhost`.
    pub url: SecretString,
    /// Interval of heartbeats; a peer that is silent for two of them is gone.
    pub heartbeat: Duration,
    /// For a connection, a declaration, a confirm.
    pub timeout: Duration,
    /// `http://user:password@host:port` of the HTTP API: what AMQP does not tell is asked there. `None`: it is not asked.
    pub management: Option<SecretString>,
}

/// How to reach Redis and how to use it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MirrorSettings {
    /// `redis://host:port/database`.
    pub url: SecretString,
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

const AMBIGUOUS: &str = "in a password write '/' as %2F, '?' as %3F, '#' as %23, '@' as %40";

/// Does an '@' stand where a host or a path should be? Then the password before it has a '/', '?', '#' or '@' that is not encoded, and
/// a parser takes its beginning for the host and the rest for something that may be shown.
fn hides_its_password(text: &str) -> bool {
    let Some((_, rest)) = text.split_once("://") else { return text.contains('@') };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let (authority, more) = rest.split_at(end);
    authority.matches('@').count() > 1 || more.contains('@')
}

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

fn url(
    section: &mut Section,
    schemes: &[&str],
    example: &str,
    variable: &str,
    problems: &mut Problems,
) -> SecretString {
    let place = section.place("url");
    let Some(text) = section.text("url", problems) else {
        problems.add(place, format!("is missing; set it (like {example}) or export {variable}"));
        return SecretString::from("");
    };
    if hides_its_password(&text) {
        problems.add(place, format!("has an '@' where none can be; {AMBIGUOUS}"));
        return SecretString::from(text);
    }
    match url::Url::parse(&text) {
        Ok(url) if schemes.contains(&url.scheme()) && (url.has_host() || url.query().is_some()) => {}
        Ok(url) if !cfg!(feature = "tls") && ["amqps", "rediss"].contains(&url.scheme()) => problems.add(
            place,
            format!("{}:// needs TLS, and this program is built without the feature `tls`", url.scheme()),
        ),
        // The text itself is not shown: it may hold a password.
        _ => problems.add(place, format!("is not a URL like {example}")),
    }
    SecretString::from(text)
}

pub(super) fn postgres(mut section: Section, problems: &mut Problems) -> PgSettings {
    let url = url(
        &mut section,
        &["postgres", "postgresql"],
        "postgres://user:password@host:5432/database",
        "DATABASE_URL",
        problems,
    );
    if problems.list().iter().all(|p| p.place != section.place("url"))
        && sqlx::postgres::PgConnectOptions::from_str(url.expose_secret()).is_err()
    {
        problems.add(section.place("url"), "PostgreSQL's driver does not understand its options");
    }
    let settings = PgSettings {
        url,
        connect_timeout: section.duration("connect_timeout", 5 * SECOND, SECOND..=300 * SECOND, problems),
        statement_timeout: section.duration("statement_timeout", 30 * SECOND, SECOND..=HOUR, problems),
        lock_timeout: section.duration("lock_timeout", 5 * SECOND, Duration::from_millis(1)..=HOUR, problems),
    };
    if settings.lock_timeout > settings.statement_timeout {
        problems.add(section.place("lock_timeout"), "must not be longer than statement_timeout");
    }
    section.finish(problems);
    settings
}

pub(super) fn rabbitmq(mut section: Section, problems: &mut Problems) -> RabbitSettings {
    let schemes: &[&str] = if cfg!(feature = "tls") { &["amqp", "amqps"] } else { &["amqp"] };
    let settings = RabbitSettings {
        url: url(&mut section, schemes, "amqp://user:password@host:5672/vhost", "AMQP_URL", problems),
        heartbeat: section.duration("heartbeat", 10 * SECOND, SECOND..=600 * SECOND, problems),
        timeout: section.duration("timeout", 30 * SECOND, SECOND..=600 * SECOND, problems),
        management: management(&mut section, problems),
    };
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

pub(super) fn mirror(
    mut redis: Section,
    mut section: Section,
    problems: &mut Problems,
) -> Option<MirrorSettings> {
    let schemes: &[&str] = if cfg!(feature = "tls") { &["redis", "rediss"] } else { &["redis"] };
    let given = redis.take("url");
    let settings = given.map(|value| {
        let mut one = Section::new("redis", [("url".to_owned(), value)].into());
        MirrorSettings {
            url: url(&mut one, schemes, "redis://host:6379/0", "REDIS_URL", problems),
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
        }
    });
    if settings.is_none() {
        // Without a Redis the settings are read all the same, so that they stay valid until there is one.
        for key in ["ttl", "budget", "buckets", "precheck", "key"] {
            section.take(key);
        }
    }
    redis.finish(problems);
    section.finish(problems);
    settings
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
