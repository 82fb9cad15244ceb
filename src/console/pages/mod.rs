//! The pages, one a file.

mod consumer;
mod consumers;
mod overview;
mod plots;
mod standing;
mod table;

use axum::Router;

use super::app::Shared;
use super::ask::{action, page};
use super::error::PageError;

/// All of them.
pub(super) fn router(app: Shared) -> Router {
    Router::new()
        .route("/", page(overview::page))
        .route("/consumers", page(consumers::page))
        .route("/consumer", page(consumer::page))
        .route("/consumer/pause", action(consumer::pause))
        .route("/consumer/resume", action(consumer::resume))
        .fallback_service(page(nowhere).with_state(app.clone()))
        .with_state(app)
}

async fn nowhere(_: super::ask::Ask) -> super::ask::Answer {
    Err(PageError::NotFound("There is no such page. The ones there are stand above.".to_owned()))
}
