//! What all pages share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::access::Access;
use super::checkup::Checkup;
use super::operations::Operations;
use super::pool::Pool;
use super::series::Plots;
use super::turns::Turns;
use super::watch::{View, Watch};
use crate::config::Config;
use crate::mask::Masks;

/// The console.
pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) access: Access,
    pub(crate) pool: Pool,
    pub(crate) watch: Watch,
    pub(crate) plots: Plots,
    pub(crate) masks: Masks,
    pub(crate) operations: Operations,
    pub(crate) checkup: Arc<Checkup>,
    /// Who follows the trail.
    pub(crate) tails: Arc<Turns>,
    /// Who fetches a file; they share one session.
    pub(crate) exports: Arc<Turns>,
    pub(crate) exporting: tokio::sync::Mutex<()>,
    /// The console stops: streams end.
    pub(crate) stop: CancellationToken,
    /// Tells whoever started the console something, like another one-time link.
    pub(crate) announce: Box<dyn Fn(&str) + Send + Sync>,
}

/// One console, many pages.
pub(crate) type Shared = Arc<App>;

impl App {
    /// How everything stands.
    pub(crate) async fn view(self: &Arc<Self>) -> Arc<View> {
        // A task of its own: whoever stops waiting does not stop the asking, whose answer is for all.
        let app = Arc::clone(self);
        let asking = tokio::spawn(async move { app.watch.view(&app.config, &app.pool).await });
        match asking.await {
            Ok(view) => view,
            Err(_) => Arc::new(View::broken_off()),
        }
    }
}
