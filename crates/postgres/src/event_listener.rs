//! Waits for notifications of new events.

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Executor as _, Row as _};

use super::connection::wait_for_answer;
use super::search_path::PINNED_PATH;
use super::session::is_standby;
use super::settings::PgSettings;

/// Channel of `oncely.notify_relay`.
const CHANNEL: &str = "oncely_events";

/// A session that is notified of new events while it has announced that it waits. It takes no events.
pub struct EventListener {
    listener: PgListener,
    settings: PgSettings,
}

impl std::fmt::Debug for EventListener {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("EventListener").finish_non_exhaustive()
    }
}

impl EventListener {
    /// Opens a session on the host that takes writes. Not behind a pooler in transaction mode, which keeps no session.
    ///
    /// # Errors
    /// If no host takes writes, or the last one of several can't be reached.
    pub async fn open(settings: &PgSettings, application: &str) -> sqlx::Result<Self> {
        let settings =
            settings.reread_urls().map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?;
        let hosts: Vec<PgSettings> = settings.each_host().collect();
        let mut failure = None;
        for index in settings.host_state.order_hosts(hosts.len()) {
            let Some(host) = hosts.get(index) else { continue };
            match Self::open_on_host(host, application).await {
                Ok(Some(listener)) => return Ok(listener),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(super::connection::build_standby_error))
    }

    /// Opens a session on a host; returns `None` if it is a standby.
    async fn open_on_host(host: &PgSettings, application: &str) -> sqlx::Result<Option<Self>> {
        // PostgreSQL notices a lost relay within half a minute or so: until then its announcement stays.
        let keepalive = ["tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_user_timeout"];
        let keepalive = keepalive.into_iter().zip(["10", "10", "30s"]);
        let options = host.connect_options(application).await?;
        let options = options.options([("search_path", PINNED_PATH)]).options(keepalive);
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .acquire_timeout(host.connect_timeout)
            .connect_lazy_with(options);
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.ignore_pool_close_event(true);
        listener.eager_reconnect(false);
        let connected = async {
            let is_on_standby = is_standby(sqlx::Acquire::acquire(&mut listener).await?).await?;
            if !is_on_standby {
                listener.listen(CHANNEL).await?;
            }
            Ok(is_on_standby)
        };
        let is_on_standby = wait_for_answer(host.connect_timeout, connected).await?;
        Ok((!is_on_standby).then(|| Self { listener, settings: host.clone() }))
    }

    /// Announces that a relay waits: from now on transactions that add events notify it when they commit. Those that have added events
    /// before don't. Returns false if another session has announced it already, or a transaction is adding an event at this moment.
    pub async fn announce_wait(&mut self) -> sqlx::Result<bool> {
        self.query_bool("select pg_catalog.pg_try_advisory_lock(1332634476, 1)").await
    }

    /// Withdraws the announcement.
    ///
    /// # Errors
    /// If this session did not make it: there is a pooler in between.
    pub async fn withdraw_wait(&mut self) -> sqlx::Result<()> {
        match self.query_bool("select pg_catalog.pg_advisory_unlock(1332634476, 1)").await? {
            true => Ok(()),
            false => Err(sqlx::Error::Configuration("the session of notifications has changed".into())),
        }
    }

    async fn query_bool(&mut self, query: &'static str) -> sqlx::Result<bool> {
        let limit = self.settings.client_timeout();
        wait_for_answer(limit, self.listener.fetch_one(query)).await?.try_get(0)
    }

    /// Waits for a notification. May be cancelled: a notification that is lost with it was received by no one.
    ///
    /// # Errors
    /// If the session has ended.
    pub async fn wait(&mut self) -> sqlx::Result<()> {
        match self.listener.try_recv().await? {
            Some(_) => {
                while self.listener.next_buffered().is_some() {}
                Ok(())
            }
            None => Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())),
        }
    }
}
