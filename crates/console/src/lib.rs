//! The web console: shows the state of the system, and lets operators act. A process of its own, which can fail without affecting worker or
//! relay.
//!
//! Pages are functions of rows, rendered here: they work without JavaScript, which only keeps them current. Users have to sign in
//! (`access`); acting requires the operator's role here *and* in PostgreSQL. A page queries PostgreSQL within a few seconds, over four
//! sessions of the console's own (`pool`).

mod access;
mod actions;
mod app;
mod ask;
mod assets;
mod checkup;
mod connection_slots;
mod digest;
mod error;
mod guard;
mod html;
mod operations;
mod page;
mod pages;
mod parameters;
mod plot;
mod pool;
mod search;
mod series;
mod server;
mod settings;
mod stream_limiter;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::access::{Access, check_listen_address};
use self::app::{App, SharedApp};
use self::operations::Operations;
use self::pool::Pool;
use self::series::Plots;
use self::stream_limiter::StreamLimiter;
use self::watch::StatusWatch;
use oncely_config::Config;
use oncely_core::mask::Masks;
use oncely_process::preflight::{preflight, warn_of_secret_files};

/// Maximum number of tails that one user, and all users, can follow at the same time.
const MAX_USER_TAILS: usize = 3;
const MAX_TAILS: usize = 20;
/// Maximum number of simultaneous downloads; one per user.
const MAX_EXPORTS: usize = 10;

/// Options of the command line.
pub struct Options {
    /// Overrides `console.listen`.
    pub listen: Option<SocketAddr>,
    /// Allows connections from other machines without TLS.
    pub insecure_plaintext: bool,
    /// Owner of the one-time link.
    pub user: String,
    /// Shows another one-time link.
    pub announce: Box<dyn Fn(&str) + Send + Sync>,
}

/// A console that listens.
pub struct Console {
    app: SharedApp,
    listener: TcpListener,
    /// Address to open: with a one-time link, if links are used.
    pub address: String,
}

impl Console {
    /// Validates the configuration and listens. An unreachable PostgreSQL is no error: the pages report it.
    ///
    /// # Errors
    /// If the configuration, the database or the address is invalid; reports all problems.
    pub async fn open(config: Config, options: Options) -> anyhow::Result<Self> {
        let listen = options.listen.unwrap_or(config.console.listen);
        check_listen_address(&config.console, listen, options.insecure_plaintext).into_result(())?;
        oncely_postgres::set_server_texts_shown(config.log.server_errors);
        warn_of_secret_files(&config);
        let mut preflight = preflight(&config).await;
        if let Some(session) = preflight.session.take() {
            session.close().await;
        }
        for condition in preflight.wait_conditions() {
            tracing::warn!("{condition}");
        }
        preflight.problems.into_result(())?;
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        // The actual port, if the system chose it.
        let listen = listener.local_addr()?;
        tracing::info!(address = %listen, "console listening");
        let (access, token) = Access::open(&config.console, &config.cell, listen, &options.user)?;
        let address = match &token {
            Some(token) => access.sign_in_url(token),
            None => access.site().address(),
        };
        let app = App {
            access,
            pool: Pool::new(&config),
            watch: StatusWatch::new(&config),
            plots: Plots::default(),
            masks: Masks::new(&config.console.mask, config.console.reveal_other_bodies),
            operations: Operations::default(),
            checkup: Arc::default(),
            tails: StreamLimiter::new(MAX_USER_TAILS, MAX_TAILS),
            exports: StreamLimiter::new(1, MAX_EXPORTS),
            export_lock: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
            announce: options.announce,
            config,
        };
        Ok(Self { app: Arc::new(app), listener, address })
    }

    /// Serves until `stop` completes. Then finishes running requests, for up to 5 seconds, and the steps in progress of requeues and
    /// discards, for up to 30 seconds more.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let stop_guard = self.app.stop.clone().drop_guard();
        let stop_task = tokio::spawn(async move {
            stop.await;
            drop(stop_guard);
        });
        let router = pages::router(Arc::clone(&self.app));
        server::serve(Arc::clone(&self.app), router, self.listener, self.app.stop.clone()).await;
        self.app.operations.shut_down().await;
        stop_task.abort();
    }
}
