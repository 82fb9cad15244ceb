//! Chooses among several hosts the one that takes writes, on the newest timeline.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::connection::{build_standby_error, wait_for_answer};
use super::error::is_outage;
use super::search_path::PINNED_PATH;
use super::settings::{HostState, PgSettings};

/// Time that a starting process waits for the other hosts after one has answered: it has recorded no timeline yet, and an old primary that
/// has come back does not know of its successor.
const OTHER_HOSTS_WAIT: Duration = Duration::from_millis(500);

/// The reason why a host is not used.
enum HostRejection {
    /// The host takes no writes.
    Standby,
    /// The host takes writes, but has a successor.
    Old {
        timeline: String,
    },
    Error(sqlx::Error),
}

impl HostRejection {
    /// Returns the priority of the reason for the error if no host is fit: an old primary has to be stopped by an operator; an unavailable
    /// host may be the primary, and so may one that refuses the connection; a standby is not.
    fn weight(&self) -> u8 {
        match self {
            Self::Old { .. } => 3,
            Self::Error(error) if is_outage(error) => 2,
            Self::Error(_) => 1,
            Self::Standby => 0,
        }
    }

    fn into_error(self) -> sqlx::Error {
        match self {
            Self::Standby => build_standby_error(),
            Self::Error(error) => error,
            // Counts as an outage, and is waited for.
            Self::Old { timeline } => {
                let text = format!(
                    "the host that takes writes is on an older timeline than another one was ({timeline}): an old primary has come back \
                     (where it was restored on purpose, restart this process)"
                );
                sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::NotConnected, text))
            }
        }
    }
}

/// Returns the reason with the higher priority, of two equal ones the first.
fn choose_weightier(first: Option<HostRejection>, second: HostRejection) -> HostRejection {
    match first {
        Some(first) if first.weight() >= second.weight() => first,
        _ => second,
    }
}

impl PgSettings {
    /// Opens a connection with an application name and server-side limits that looks names up in pg_catalog alone: Oncely's statements, and
    /// those of migrations, qualify all other names.
    ///
    /// # Errors
    /// If the URL is malformed, or the server does not answer within `connect_timeout` or can't be trusted. With several hosts, if none of
    /// them takes writes.
    pub async fn connect(&self, application: &str) -> sqlx::Result<PgConnection> {
        self.connect_with(application, Some(PINNED_PATH)).await
    }

    pub(super) async fn connect_with(
        &self,
        application: &str,
        search_path: Option<&str>,
    ) -> sqlx::Result<PgConnection> {
        // The file may be missing only for a moment: an outage, which is retried.
        let settings = self.reread_urls().map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?;
        let hosts: Vec<Self> = settings.each_host().collect();
        match hosts.as_slice() {
            [host] => host.connect_to_host(application, search_path).await,
            _ => connect_to_one_of(&hosts, &self.host_state, application, search_path).await,
        }
    }
}

/// Connects to the host that takes writes, beginning with the one that did so last time.
async fn connect_to_one_of(
    hosts: &[PgSettings],
    state: &HostState,
    application: &str,
    search_path: Option<&str>,
) -> sqlx::Result<PgConnection> {
    if state.is_new() {
        record_timelines(hosts, state, application).await;
    }
    let mut weightiest = None;
    for index in state.order_hosts(hosts.len()) {
        let Some(host) = hosts.get(index) else { continue };
        let unfit = match connect_to_primary(host, application, search_path).await {
            Ok((connection, timeline)) if state.record_timeline(&timeline) => {
                state.record_fit(index);
                return Ok(connection);
            }
            Ok((_, timeline)) => HostRejection::Old { timeline },
            Err(unfit) => unfit,
        };
        // Before the other hosts are tried: the caller may drop this future.
        state.record_unfit(index, hosts.len());
        weightiest = Some(choose_weightier(weightiest, unfit));
    }
    Err(weightiest.map_or_else(build_standby_error, HostRejection::into_error))
}

/// Records the newest timeline of the reachable hosts, and the host that has it.
async fn record_timelines(hosts: &[PgSettings], state: &HostState, application: &str) {
    let mut connections: FuturesUnordered<_> = hosts
        .iter()
        .map(|host| connect_to_primary(host, application, None))
        .enumerate()
        .map(wait_with_index)
        .collect();
    let mut is_found = false;
    loop {
        let result = match is_found {
            true => tokio::time::timeout(OTHER_HOSTS_WAIT, connections.next()).await.ok().flatten(),
            false => connections.next().await,
        };
        match result {
            Some((index, Ok((_, timeline)))) => {
                is_found = true;
                if state.record_timeline(&timeline) {
                    state.record_fit(index);
                }
            }
            Some((_, Err(_))) => {}
            None => return,
        }
    }
}

/// Waits for a connection attempt; returns its result with the index of its host.
async fn wait_with_index<T>((index, connecting): (usize, impl Future<Output = T>)) -> (usize, T) {
    (index, connecting.await)
}

/// Connects to a host if it takes writes; also returns its server and timeline, the first part of `oncely.epoch()`.
async fn connect_to_primary(
    host: &PgSettings,
    application: &str,
    search_path: Option<&str>,
) -> Result<(PgConnection, String), HostRejection> {
    let mut connection =
        host.connect_to_host(application, search_path).await.map_err(HostRejection::Error)?;
    let query = sqlx::raw_sql(
        "select case when not pg_catalog.pg_is_in_recovery() then pg_catalog.concat(
            (select system_identifier from pg_catalog.pg_control_system()), '-',
            pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)
        ) end",
    );
    let row = wait_for_answer(host.connect_timeout, query.fetch_one(&mut connection)).await;
    let timeline = row.and_then(|row| row.try_get::<Option<String>, _>(0)).map_err(HostRejection::Error)?;
    match timeline {
        Some(timeline) => Ok((connection, timeline)),
        None => {
            tracing::debug!(server = host.redacted(), "PostgreSQL: a standby");
            Err(HostRejection::Standby)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_hosts_say_the_weightiest_is_told() {
        let away = || HostRejection::Error(sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()));
        // A fault, like a server's refusal of a login.
        let refused = || HostRejection::Error(sqlx::Error::RowNotFound);
        let standby = || HostRejection::Standby;
        let old = || HostRejection::Old { timeline: "7001-00000001".to_owned() };
        for (first, second, expected) in [
            (away(), refused(), 2),
            (refused(), away(), 2),
            (refused(), standby(), 1),
            (standby(), refused(), 1),
            (standby(), away(), 2),
            (standby(), standby(), 0),
            (old(), away(), 3),
            (standby(), old(), 3),
        ] {
            let weightiest = Some(choose_weightier(Some(choose_weightier(None, first)), second));
            assert_eq!(weightiest.map(|rejection| rejection.weight()), Some(expected));
        }
    }
}
