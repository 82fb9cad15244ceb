//! State shared by all pages.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::checkup::CheckRunner;
use super::operations::Operations;
use super::pool::Pool;
use super::series::Plots;
use super::stream_limiter::StreamLimiter;
use super::watch::{StatusView, StatusWatch};
use oncely_config::Config;
use oncely_core::mask::Masks;

/// A console's state.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) access: Access,
    pub(crate) pool: Pool,
    pub(crate) watch: StatusWatch,
    pub(crate) plots: Plots,
    pub(crate) masks: Masks,
    pub(crate) operations: Operations,
    pub(crate) checkup: Arc<CheckRunner>,
    /// Followers of the trail.
    pub(crate) tails: Arc<StreamLimiter>,
    /// Downloads of files.
    pub(crate) exports: Arc<StreamLimiter>,
    /// Held during each query of a download: all of them together use one session.
    pub(crate) export_lock: tokio::sync::Mutex<()>,
    /// Cancelled when the console stops, which ends streams.
    pub(crate) stop: CancellationToken,
    /// Shows a message to the user who started the console, such as another one-time link.
    pub(crate) announce: Box<dyn Fn(&str) + Send + Sync>,
}

/// One console, shared by its pages.
pub(crate) type SharedApp = Arc<App>;

impl App {
    /// Queries the state of the system, or returns a recent one. The query goes on if the caller stops waiting.
    pub(crate) async fn query_status(self: &Arc<Self>) -> Arc<StatusView> {
        // In a task of its own: a caller that stops waiting does not cancel the queries, which serve all callers.
        let app = Arc::clone(self);
        let query = tokio::spawn(async move { app.watch.query(&app.config, &app.pool).await });
        match query.await {
            Ok(view) => view,
            Err(_) => Arc::new(StatusView::from_failed_query()),
        }
    }
}
