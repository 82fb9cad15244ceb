//! The record of who looked at a message as it is.

use serde_json::json;

use super::super::ask::Ask;
use super::super::error::PageError;
use crate::pg;

/// Records, before it is shown, that somebody looks at a message.
pub(super) async fn record_reveal(ask: &Ask, what: &str) -> Result<(), PageError> {
    let mut lease = ask.app.pool.lease().await?;
    if !lease.abilities.record {
        let login = lease.abilities.login.clone();
        lease.give_back();
        return Err(PageError::Refused(format!(
            "The console's login {login} can't record that somebody looked, so nothing is revealed: that takes the role oncely_operator."
        )));
    }
    let named = ["id", "tenant", "consumer", "key"]
        .iter()
        .filter_map(|name| Some((*name, ask.parameters.get(name)?)));
    let mut filter: serde_json::Map<String, serde_json::Value> =
        named.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    filter.insert("what".to_owned(), json!(what));
    let actor = ask.visitor.session.person.actor();
    let filter = serde_json::Value::Object(filter);
    let action = pg::Action {
        tenant: ask.parameters.get("tenant").unwrap_or_default(),
        verb: "reveal",
        user: &actor,
        filter: &filter,
        count: 1,
        reason: None,
    };
    pg::record_action(&mut lease.session.connection, &action).await?;
    lease.give_back();
    Ok(())
}
