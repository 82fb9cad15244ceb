//! The record of users who viewed an unmasked message.

use serde_json::json;
use uuid::Uuid;

use super::super::ask::PageRequest;
use super::super::error::PageError;
use oncely_postgres as pg;

/// The letter or key that is revealed, as recorded.
pub(super) struct RevealTarget<'a> {
    pub(super) kind: &'static str,
    pub(super) id: Option<Uuid>,
    pub(super) tenant: &'a str,
    pub(super) consumer: &'a str,
    pub(super) key: &'a str,
}

/// Records that a user views an unmasked message or response, before it is shown.
///
/// # Errors
/// If it can't be recorded: then nothing may be revealed.
pub(super) async fn record_reveal(request: &PageRequest, target: RevealTarget<'_>) -> Result<(), PageError> {
    let RevealTarget { kind, id, tenant, consumer, key } = target;
    let inability = "can't record who looked, so nothing is revealed";
    let mut pooled = request.acquire_for(|may| may.record, inability).await?;
    let actor = request.viewer.session.user.actor();
    let mut filter = json!({ "what": kind, "tenant": tenant, "consumer": consumer, "key": key });
    if let Some(id) = id {
        filter["id"] = json!(id);
    }
    let action = pg::Action { tenant, verb: "reveal", user: &actor, filter: &filter, count: 1, reason: None };
    pg::record_action(&mut pooled.session.connection, &action).await?;
    pooled.give_back();
    Ok(())
}
