//! `[postgres]`: connection to PostgreSQL and its time limits.

use std::time::Duration;

use super::given_url::urls;
use super::tls::{allow_plaintext, tls};
use super::{Problems, Section};
use oncely_net::server_url::differ_by_host_alone;
use oncely_net::tls::TlsSettings;
use oncely_postgres::{Address, AddressError, HostState, PgSettings, files_of_url};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) fn postgres(mut section: Section, problems: &mut Problems) -> PgSettings {
    let given = urls(
        &mut section,
        &["postgres", "postgresql"],
        "postgres://user:password@host:5432/database",
        "DATABASE_URL",
        problems,
    );
    let settings = PgSettings {
        url: given.url,
        other_hosts: given.others,
        url_file: given.file,
        tls: tls(&mut section, problems),
        allow_plaintext: allow_plaintext(&mut section, problems),
        connect_timeout: section.duration("connect_timeout", 5 * SECOND, SECOND..=300 * SECOND, problems),
        statement_timeout: section.duration("statement_timeout", 30 * SECOND, SECOND..=HOUR, problems),
        lock_timeout: section.duration("lock_timeout", 5 * SECOND, Duration::from_millis(1)..=HOUR, problems),
        turn: HostState::default(),
    };
    if settings.lock_timeout > settings.statement_timeout {
        problems.add(section.place("lock_timeout"), "must not be longer than statement_timeout");
    }
    if settings.tls.as_ref().is_some_and(|tls| tls.server_name.is_some()) {
        let what = "is not for PostgreSQL: its driver verifies the host of the URL; call the server by a name that is in its certificate";
        problems.add(section.place("tls.server_name"), what);
    }
    if given.is_sound {
        if !differ_by_host_alone(std::iter::once(&settings.url).chain(&settings.other_hosts)) {
            let what = "has URLs that differ in more than host and port: they must be a primary and its standbys, with the same user, \
                        password, database and options";
            problems.add(&given.place, what);
        }
        reachable(&settings, &given.place, problems);
    }
    section.finish(problems);
    settings
}

/// Checks that the connection to each host is completely specified.
fn reachable(settings: &PgSettings, place: &str, problems: &mut Problems) {
    for host in settings.each_host() {
        match Address::from_settings(&host) {
            Ok(_) => {}
            Err(AddressError::Url) => {
                return problems.add(place, "PostgreSQL's driver does not understand its options");
            }
            Err(AddressError::Tls(error)) => return problems.add(place, error.to_string()),
        }
    }
    named_by_url(files_of_url(&settings.url), settings.tls.as_ref(), place, problems);
}

/// Checks the files that the URL names (`sslrootcert`, `sslcert`, `sslkey`); those of `tls` are checked elsewhere.
fn named_by_url(mut named: TlsSettings, said: Option<&TlsSettings>, place: &str, problems: &mut Problems) {
    if named.cert.is_some() != named.key.is_some() {
        problems.add(place, "names one of sslcert and sslkey: each is of no use without the other");
    }
    if let Some(said) = said {
        for (option, named, said) in [
            ("sslrootcert", &mut named.ca, &said.ca),
            ("sslcert", &mut named.cert, &said.cert),
            ("sslkey", &mut named.key, &said.key),
        ] {
            match (named.take(), said) {
                (Some(one), Some(other)) if one != *other => {
                    let what = format!(
                        "names another file by {option} than postgres.tls does: leave one of them out"
                    );
                    problems.add(place, what);
                }
                (one, None) => *named = one,
                _ => {}
            }
        }
    }
    for wrong in oncely_net::tls::problems(&named) {
        problems.add(place, wrong.to_string());
    }
}
