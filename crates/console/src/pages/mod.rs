//! The pages, one file each.

mod checks;
mod consumer;
mod consumer_state;
mod consumers;
mod doctor;
mod export;
mod failed;
mod following;
mod key;
mod keys;
mod leases;
mod letter;
mod letters;
mod operation;
mod outbox;
mod overview;
mod plan;
mod plots;
mod reveal;
mod rows;
mod settle;
mod table;
mod tail;

use axum::Router;

use super::app::SharedApp;
use super::ask::{action, page};
use super::error::PageError;

/// Returns the routes of all pages.
pub(super) fn router(app: SharedApp) -> Router {
    Router::new()
        .route("/", page(overview::page))
        .route("/consumers", page(consumers::page))
        .route("/consumer", page(consumer::page))
        .route("/consumer/pause", action(consumer::pause))
        .route("/consumer/resume", action(consumer::resume))
        .route("/keys", page(keys::page))
        .route("/keys/export.csv", page(export::csv))
        .route("/keys/export.ndjson", page(export::ndjson))
        .route("/keys/tail", page(tail::page))
        .route("/key", page(key::page))
        .route("/key/reveal", action(key::reveal))
        .route("/leases", page(leases::page))
        .route("/lease", page(leases::plan))
        .route("/lease/release", action(leases::release))
        .route("/settle", page(settle::plan))
        .route("/settle/say", action(settle::settle))
        .route("/failed", page(failed::page))
        .route("/failed/letters", page(letters::page))
        .route("/failed/letter", page(letter::page))
        .route("/failed/reveal", action(letter::reveal))
        .route("/failed/plan", page(plan::page))
        .route("/failed/operate", action(plan::operate))
        .route("/failed/operation", page(operation::page))
        .route("/failed/stop", action(operation::stop_operation))
        .route("/outbox", page(outbox::page))
        .route("/outbox/change", action(outbox::change_them))
        .route("/doctor", page(doctor::page))
        .route("/doctor/run", action(checks::run))
        .fallback_service(page(not_found).with_state(app.clone()))
        .with_state(app)
}

async fn not_found(_: super::ask::PageRequest) -> super::ask::PageResult {
    Err(PageError::NotFound("There is no such page. The ones there are stand above.".to_owned()))
}
