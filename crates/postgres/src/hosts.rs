//! Chooses among several hosts the one that takes writes, on the newest timeline.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use sqlx::Row as _;
use sqlx::postgres::PgConnection;

use super::connection::{standby, within};
use super::error::is_outage;
use super::search_path::PINNED;
use super::settings::{HostState, PgSettings};

/// Time that a starting process waits for the other hosts after one has answered: it has seen no timeline yet, and an old primary that has
/// come back does not know of its successor.
const OTHERS: Duration = Duration::from_millis(500);

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
    /// Returns the priority of this reason if no host is fit: an old primary has to be stopped by an operator; an unavailable host may be
    /// the primary, and so may one that refuses the connection; a standby is not.
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
            Self::Standby => standby(),
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

/// Returns the reason with the higher priority.
fn weightier(kept: Option<HostRejection>, unfit: HostRejection) -> HostRejection {
    match kept {
        Some(kept) if kept.weight() >= unfit.weight() => kept,
        _ => unfit,
    }
}

impl PgSettings {
    /// Opens a connection with an application name and server-side limits that looks names up in pg_catalog alone: our statements, and
    /// those of migrations, qualify all other names.
    ///
    /// # Errors
    /// If the URL is malformed, or the server does not answer in time or can't be trusted. With several hosts, if none of them takes
    /// writes.
    pub async fn connect(&self, application: &str) -> sqlx::Result<PgConnection> {
        self.connect_with(application, Some(PINNED)).await
    }

    pub(super) async fn connect_with(
        &self,
        application: &str,
        search_path: Option<&str>,
    ) -> sqlx::Result<PgConnection> {
        // The file may be missing only for a moment: an outage, which is retried.
        let settings = self.current().map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?;
        let hosts: Vec<Self> = settings.each_host().collect();
        match hosts.as_slice() {
            [alone] => alone.connect_to_host(application, search_path).await,
            _ => connect_to_one_of(&hosts, &self.turn, application, search_path).await,
        }
    }
}

/// Connects to the host that takes writes, beginning with the one that did so last time.
async fn connect_to_one_of(
    hosts: &[PgSettings],
    turn: &HostState,
    application: &str,
    search_path: Option<&str>,
) -> sqlx::Result<PgConnection> {
    if turn.is_new() {
        look_at_all(hosts, turn, application).await;
    }
    let mut kept = None;
    for index in turn.order(hosts.len()) {
        let Some(host) = hosts.get(index) else { continue };
        let unfit = match primary(host, application, search_path).await {
            Ok((connection, timeline)) if turn.admits(&timeline) => {
                turn.keep(index);
                return Ok(connection);
            }
            Ok((_, timeline)) => HostRejection::Old { timeline },
            Err(unfit) => unfit,
        };
        // Before the others are asked: the caller may not wait for them.
        turn.pass(index, hosts.len());
        kept = Some(weightier(kept, unfit));
    }
    Err(kept.map_or_else(standby, HostRejection::into_error))
}

/// Records the newest timeline of the reachable hosts, and the host that has it.
async fn look_at_all(hosts: &[PgSettings], turn: &HostState, application: &str) {
    let mut asked: FuturesUnordered<_> =
        hosts.iter().map(|host| primary(host, application, None)).enumerate().map(answered).collect();
    let mut found = false;
    loop {
        let answer = match found {
            true => tokio::time::timeout(OTHERS, asked.next()).await.ok().flatten(),
            false => asked.next().await,
        };
        match answer {
            Some((index, Ok((_, timeline)))) => {
                found = true;
                if turn.admits(&timeline) {
                    turn.keep(index);
                }
            }
            Some((_, Err(_))) => {}
            None => return,
        }
    }
}

async fn answered<T>((index, asking): (usize, impl Future<Output = T>)) -> (usize, T) {
    (index, asking.await)
}

/// Connects to a host that takes writes; also returns its server and timeline, the beginning of `oncely.epoch()`.
async fn primary(
    host: &PgSettings,
    application: &str,
    search_path: Option<&str>,
) -> Result<(PgConnection, String), HostRejection> {
    let mut connection =
        host.connect_to_host(application, search_path).await.map_err(HostRejection::Error)?;
    let asked = sqlx::raw_sql(
        "select case when not pg_catalog.pg_is_in_recovery() then pg_catalog.concat(
            (select system_identifier from pg_catalog.pg_control_system()), '-',
            pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 8)
        ) end",
    );
    let row = within(host.connect_timeout, asked.fetch_one(&mut connection)).await;
    let timeline = row.and_then(|row| row.try_get::<Option<String>, _>(0)).map_err(HostRejection::Error)?;
    match timeline {
        Some(timeline) => Ok((connection, timeline)),
        None => {
            tracing::debug!(server = host.shown(), "PostgreSQL: a standby");
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
            let kept = Some(weightier(Some(weightier(None, first)), second));
            assert_eq!(kept.map(|kept| kept.weight()), Some(expected));
        }
    }
}
