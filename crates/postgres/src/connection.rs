//! A connection to one host, with limits that hold for its whole life.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use super::address::Address;
use super::search_path::pin_search_path;
use super::settings::PgSettings;

/// Waits up to `limit` for the result of a query: a peer that vanished silently never answers, and the server's limits vanished with it.
/// After a timeout the connection must not be used again.
pub async fn wait_for_answer<T>(
    limit: Duration,
    query: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    match tokio::time::timeout(limit, query).await {
        Ok(result) => result,
        Err(_) => {
            let text = format!("no answer within {limit:?}");
            Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
        }
    }
}

/// Returns the error for a standby, which counts as an outage: it takes no writes until it becomes a primary or is replaced by one.
pub(super) fn build_standby_error() -> sqlx::Error {
    let text = "the server is a standby: it takes no writes";
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::NotConnected, text))
}

/// Reads a session's settings that must have certain values.
async fn read_required_settings(connection: &mut PgConnection) -> sqlx::Result<Vec<(String, String)>> {
    let rows = sqlx::raw_sql(
        "select name, setting from pg_catalog.pg_settings
         where name operator(pg_catalog.=) any (array['statement_timeout', 'lock_timeout', 'default_transaction_isolation',
            'idle_in_transaction_session_timeout', 'search_path'])",
    );
    let rows = rows.fetch_all(connection).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

impl PgSettings {
    /// Returns the settings of every session, overriding those of its role and database.
    fn session_settings(&self) -> [(&'static str, String); 4] {
        let millis = |limit: Duration| limit.as_millis().to_string();
        [
            ("statement_timeout", millis(self.statement_timeout)),
            ("lock_timeout", millis(self.lock_timeout)),
            // A claim relies on seeing the commits of other transactions.
            ("default_transaction_isolation", "read committed".to_owned()),
            // A process that stalls inside a transaction must not hold its locks for ever.
            ("idle_in_transaction_session_timeout", millis(self.statement_timeout * 2)),
        ]
    }

    /// Connects without any start-up option; returns whether one of the hosts answered.
    pub async fn can_connect_without_options(&self) -> bool {
        let Ok(settings) = self.reread_urls() else { return false };
        for host in settings.each_host() {
            let connected = async {
                let options = Address::from_settings(&host)?.into_options().await?;
                options.extra_float_digits(None).connect().await?.close().await
            };
            if tokio::time::timeout(host.connect_timeout, connected).await.is_ok_and(|result| result.is_ok())
            {
                return true;
            }
        }
        false
    }

    /// Returns the options of a connection to the first host.
    pub(super) async fn connect_options(&self, application: &str) -> sqlx::Result<PgConnectOptions> {
        let options = Address::from_settings(self)?.into_options().await?;
        // Statement texts hold no data, but at their default level they would drown all other log lines.
        Ok(options.application_name(application).log_statements(tracing::log::LevelFilter::Trace))
    }

    /// Opens a connection to the first host only.
    pub(super) async fn connect_to_host(
        &self,
        application: &str,
        search_path: Option<&str>,
    ) -> sqlx::Result<PgConnection> {
        let limits = self.session_settings();
        let options = self
            .connect_options(application)
            .await?
            .options(limits.iter().map(|(name, value)| (*name, value)))
            .options(search_path.map(|path| ("search_path", path)))
            // By outdated statistics a statement of milliseconds may seem so expensive that PostgreSQL compiles it, which takes seconds.
            .options([("jit", "off")]);
        let connected = async {
            let mut connection = options.connect().await?;
            let settings = read_required_settings(&mut connection).await?;
            let is_in_force = |name: &str, value: &str| {
                settings.iter().any(|(setting, setting_value)| setting == name && setting_value == value)
            };
            // A pooler may drop them, and then the wait for a lock or a statement would have no limit.
            if let Some((name, _)) = limits.iter().find(|(name, value)| !is_in_force(name, value)) {
                let text = format!(
                    "start-up options are not in force ({name}): is there a pooler in between that drops them? Connect to PostgreSQL \
                     directly, or use it in session mode and give the login these settings ({})",
                    limits.each_ref().map(|(name, value)| format!("{name} = '{value}'")).join(", ")
                );
                return Err(sqlx::Error::Configuration(text.into()));
            }
            if search_path.is_some_and(|path| !is_in_force("search_path", path)) {
                // The login's own search_path is for its handlers.
                pin_search_path(&mut connection).await?;
            }
            Ok(connection)
        };
        match tokio::time::timeout(self.connect_timeout, connected).await {
            Ok(result) => result,
            Err(_) => Err(sqlx::Error::Io(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("no connection within {:?}", self.connect_timeout),
            ))),
        }
    }
}
