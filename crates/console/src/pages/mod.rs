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
use super::ask::{action_route, page_route};
use super::error::PageError;

/// Returns the routes of all pages.
pub(super) fn router(app: SharedApp) -> Router {
    Router::new()
        .route("/", page_route(overview::page))
        .route("/consumers", page_route(consumers::page))
        .route("/consumer", page_route(consumer::page))
        .route("/consumer/pause", action_route(consumer::pause))
        .route("/consumer/resume", action_route(consumer::resume))
        .route("/keys", page_route(keys::page))
        .route("/keys/export.csv", page_route(export::export_csv))
        .route("/keys/export.ndjson", page_route(export::export_ndjson))
        .route("/keys/tail", page_route(tail::page))
        .route("/key", page_route(key::page))
        .route("/key/reveal", action_route(key::reveal))
        .route("/leases", page_route(leases::page))
        .route("/lease", page_route(leases::release_form))
        .route("/lease/release", action_route(leases::release))
        .route("/settle", page_route(settle::settle_form))
        .route("/settle/say", action_route(settle::settle))
        .route("/failed", page_route(failed::page))
        .route("/failed/letters", page_route(letters::page))
        .route("/failed/letter", page_route(letter::page))
        .route("/failed/reveal", action_route(letter::reveal))
        .route("/failed/plan", page_route(plan::page))
        .route("/failed/operate", action_route(plan::begin_operation))
        .route("/failed/operation", page_route(operation::page))
        .route("/failed/stop", action_route(operation::stop_operation))
        .route("/outbox", page_route(outbox::page))
        .route("/outbox/change", action_route(outbox::change_events))
        .route("/doctor", page_route(doctor::page))
        .route("/doctor/run", action_route(checks::begin_run))
        .fallback_service(page_route(reject_unknown_path).with_state(app.clone()))
        .with_state(app)
}

async fn reject_unknown_path(_: super::ask::PageRequest) -> super::ask::PageResult {
    Err(PageError::NotFound("There is no such page. The ones there are stand above.".to_owned()))
}
