//! The console: a look at everything in the browser, and what an operator does about it. One process of its own, which can fail without
//! touching worker or relay.
//!
//! Pages are functions of rows, drawn here: they work without JavaScript, and what JavaScript adds is that they stay current. Whoever
//! looks has come in ([`access`]); whoever acts is an operator here *and* in PostgreSQL. A page asks PostgreSQL within a few seconds, over four
//! sessions of the console's own ([`pool`]).

mod access;
mod actions;
mod app;
mod ask;
mod assets;
mod broker;
mod checkup;
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
mod seats;
mod series;
mod server;
mod settings;
mod turns;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::access::{Access, refusals};
use self::app::{App, Shared};
use self::operations::Operations;
use self::pool::Pool;
use self::series::Plots;
use self::turns::Turns;
use self::watch::Watch;
use crate::config::Config;
use crate::mask::Masks;
use crate::preflight::{preflight, warn_of_secret_files};

/// Tails that a person may follow at the same time, and all people.
const TAILS: usize = 3;
const ALL_TAILS: usize = 20;
/// Files that are fetched at the same time; a person fetches one.
const ALL_EXPORTS: usize = 10;

/// What the one who starts it says.
pub(crate) struct Options {
    /// Instead of `console.listen`.
    pub(crate) listen: Option<SocketAddr>,
    /// Other machines may come near without TLS.
    pub(crate) insecure_plaintext: bool,
    /// Whose the one-time link is.
    pub(crate) user: String,
    /// Tells another one-time link.
    pub(crate) announce: Box<dyn Fn(&str) + Send + Sync>,
}

/// A console that listens.
pub(crate) struct Console {
    app: Shared,
    listener: TcpListener,
    /// Where people come in: by a one-time link, where there is one.
    pub(crate) address: String,
}

impl Console {
    /// Looks whether it may, and listens. A PostgreSQL that does not answer is no reason not to: the pages say so.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration, the database or the address.
    pub(crate) async fn open(config: Config, options: Options) -> anyhow::Result<Self> {
        let listen = options.listen.unwrap_or(config.console.listen);
        refusals(&config.console, listen, options.insecure_plaintext).or(())?;
        crate::pg::tell_server_texts(config.log.server_errors);
        warn_of_secret_files(&config);
        let mut found = preflight(&config, false).await;
        if let Some(session) = found.session.take() {
            session.close().await;
        }
        for waits_for in found.waits_for() {
            tracing::warn!("{waits_for}");
        }
        found.problems.or(())?;
        let listener =
            TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        // The port, where it was left to the system.
        let listen = listener.local_addr()?;
        tracing::info!(address = %listen, "listening: the console");
        let (access, token) = Access::open(&config.console, &config.cell, listen, &options.user)?;
        let address = match &token {
            Some(token) => access.link(token),
            None => access.site().address(),
        };
        let app = App {
            access,
            pool: Pool::new(&config),
            watch: Watch::new(&config),
            plots: Plots::default(),
            masks: Masks::new(&config.console.mask, config.console.reveal_other_bodies),
            operations: Operations::default(),
            checkup: Arc::default(),
            tails: Turns::new(TAILS, ALL_TAILS),
            exports: Turns::new(1, ALL_EXPORTS),
            exporting: tokio::sync::Mutex::default(),
            stop: CancellationToken::new(),
            announce: options.announce,
            config,
        };
        Ok(Self { app: Arc::new(app), listener, address })
    }

    /// Answers until `stop` is over, and finishes what it has begun.
    pub(crate) async fn run(self, stop: impl Future<Output = ()> + Send + 'static) {
        let told = self.app.stop.clone().drop_guard();
        let waiting = tokio::spawn(async move {
            stop.await;
            drop(told);
        });
        let router = pages::router(Arc::clone(&self.app));
        server::serve(Arc::clone(&self.app), router, self.listener, self.app.stop.clone()).await;
        self.app.operations.end().await;
        waiting.abort();
    }
}
