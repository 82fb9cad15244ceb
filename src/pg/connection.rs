//! A connection to one host, with the limits that must hold for all its life.

use std::time::Duration;

use sqlx::postgres::PgConnection;
use sqlx::{ConnectOptions as _, Row as _};

use super::address::Address;
use super::settings::PgSettings;

/// Waits for an answer of PostgreSQL, with a limit of our own: a peer that vanished without a word never answers, and the
/// server's limits vanished with it. After it the connection must not be used again.
pub(crate) async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, asked).await {
        Ok(answer) => answer,
        Err(_) => {
            let text = format!("no answer within {limit:?}");
            Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text)))
        }
    }
}

/// As good as away: it takes no writes, and becomes a primary or is replaced by one.
pub(super) fn standby() -> sqlx::Error {
    let text = "the server is a standby: it takes no writes";
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::NotConnected, text))
}

impl PgSettings {
    /// Opens a connection to the first of the hosts, without a look at the others.
    pub(super) async fn connect_to_host(
        &self,
        application: &str,
        search_path: Option<&str>,
    ) -> Result<PgConnection, sqlx::Error> {
        let millis = |limit: Duration| limit.as_millis().to_string();
        let options = Address::of(self)?
            .into_options()
            .await?
            .application_name(application)
            .options([
                ("statement_timeout", millis(self.statement_timeout)),
                ("lock_timeout", millis(self.lock_timeout)),
                // Whatever the role or the database says: a claim counts on seeing what others have committed.
                ("default_transaction_isolation", "read committed".to_owned()),
                // A process that stands still inside a transaction must not hold its locks for ever.
                ("idle_in_transaction_session_timeout", millis(self.statement_timeout * 2)),
            ])
            .options(search_path.map(|path| ("search_path", path)))
            // Statement texts hold no data, but at their default level they would drown everything else.
            .log_statements(tracing::log::LevelFilter::Trace);
        let connected = async {
            let mut connection = options.connect().await?;
            // A pooler may drop them, and then a lock or a statement would be waited for without end.
            let row = sqlx::raw_sql("select setting from pg_settings where name = 'lock_timeout'")
                .fetch_one(&mut connection)
                .await?;
            if row.try_get::<String, _>(0)? != millis(self.lock_timeout) {
                let text = "start-up options are not in force: is there a pooler in between that drops them? Connect to PostgreSQL \
                            directly, or let it pass them on in session mode";
                return Err(sqlx::Error::Configuration(text.into()));
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
