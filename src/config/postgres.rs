//! `[postgres]`: where PostgreSQL is and how patient we are with it.

use std::time::Duration;

use super::server_url::{GivenUrl, url};
use super::tls::{allow_plaintext, tls};
use super::{Problems, Section};
use crate::pg::{Address, AddressError, PgSettings};
use crate::tls::TlsSettings;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn postgres(mut section: Section, problems: &mut Problems) -> PgSettings {
    let GivenUrl { url, file, place } = url(
        &mut section,
        &["postgres", "postgresql"],
        "postgres://user:password@host:5432/database",
        "DATABASE_URL",
        problems,
    );
    let settings = PgSettings {
        url,
        url_file: file,
        tls: tls(&mut section, problems),
        allow_plaintext: allow_plaintext(&mut section, problems),
        connect_timeout: section.duration("connect_timeout", 5 * SECOND, SECOND..=300 * SECOND, problems),
        statement_timeout: section.duration("statement_timeout", 30 * SECOND, SECOND..=HOUR, problems),
        lock_timeout: section.duration("lock_timeout", 5 * SECOND, Duration::from_millis(1)..=HOUR, problems),
    };
    if settings.lock_timeout > settings.statement_timeout {
        problems.add(section.place("lock_timeout"), "must not be longer than statement_timeout");
    }
    if settings.tls.as_ref().is_some_and(|tls| tls.server_name.is_some()) {
        let what = "is not for PostgreSQL: its driver verifies the host of the URL; call the server by a name that is in its certificate";
        problems.add(section.place("tls.server_name"), what);
    }
    if problems.list().iter().all(|problem| problem.place != place) {
        match Address::of(&settings) {
            Ok(address) => named_by_url(address.tls, settings.tls.as_ref(), &place, problems),
            Err(AddressError::Url) => {
                problems.add(place, "PostgreSQL's driver does not understand its options");
            }
            Err(AddressError::Tls(error)) => problems.add(place, error.to_string()),
        }
    }
    section.finish(problems);
    settings
}

/// What is wrong with the files that the URL names (`sslrootcert`, `sslcert`, `sslkey`); those of `tls` were looked at.
fn named_by_url(all: Option<TlsSettings>, said: Option<&TlsSettings>, place: &str, problems: &mut Problems) {
    let Some(mut named) = all else { return };
    let has = |file: fn(&TlsSettings) -> bool| said.is_some_and(file);
    if has(|tls| tls.ca.is_some()) {
        named.ca = None;
    }
    if has(|tls| tls.cert.is_some()) && has(|tls| tls.key.is_some()) {
        (named.cert, named.key) = (None, None);
    }
    if named.cert.is_some() != named.key.is_some() {
        problems.add(place, "names one of sslcert and sslkey: each is of no use without the other");
    }
    for wrong in crate::tls::problems(&named) {
        problems.add(place, wrong.to_string());
    }
}
