//! The record of users who viewed an unmasked message.

use serde_json::json;
use uuid::Uuid;

use super::super::ask::PageRequest;
use super::super::error::PageError;
use oncely_postgres as pg;

/// The revealed item, as recorded.
pub(super) struct RevealTarget<'a> {
    pub(super) what: &'static str,
    pub(super) id: Option<Uuid>,
    pub(super) tenant: &'a str,
    pub(super) consumer: &'a str,
    pub(super) key: &'a str,
}

/// Records that a user views a message, before it is shown.
pub(super) async fn record_reveal(ask: &PageRequest, revealed: RevealTarget<'_>) -> Result<(), PageError> {
    let RevealTarget { what, id, tenant, consumer, key } = revealed;
    let cannot = "can't record who looked, so nothing is revealed";
    let mut pooled = ask.acquire_for(|may| may.record, cannot).await?;
    let actor = ask.visitor.session.user.actor();
    let mut filter = json!({ "what": what, "tenant": tenant, "consumer": consumer, "key": key });
    if let Some(id) = id {
        filter["id"] = json!(id);
    }
    let action = pg::Action { tenant, verb: "reveal", user: &actor, filter: &filter, count: 1, reason: None };
    pg::record_action(&mut pooled.session.connection, &action).await?;
    pooled.give_back();
    Ok(())
}
