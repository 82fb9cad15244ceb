//! Events: written by whoever has something to announce, in the transaction of the effect.

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::event::Event;
use crate::message::{HeaderValue, RawMessage};

/// Writes an event in the caller's transaction; it is published once that has committed. Returns its id.
///
/// # Errors
/// SQLSTATE `ONC04`: too large; `ONC05`: it can't be sent as it is. And whatever else keeps a row from being written.
pub async fn emit(connection: &mut PgConnection, event: &Event) -> Result<Uuid, sqlx::Error> {
    emit_for(connection, event, None).await
}

/// The same, caused by a delivery: its tenant and its W3C trace context go on with the event, unless that has its own.
pub(crate) async fn emit_for(
    connection: &mut PgConnection,
    event: &Event,
    cause: Option<(&str, &RawMessage)>,
) -> Result<Uuid, sqlx::Error> {
    let mut headers = event.headers.clone();
    if let Some((_, message)) = cause
        && !headers.contains_key("traceparent")
    {
        for name in ["traceparent", "tracestate"] {
            if let Some(HeaderValue::Text(bytes)) = message.headers.get(name)
                && let Ok(text) = std::str::from_utf8(bytes)
                && !text.contains('\0')
            {
                headers.insert(name.to_owned(), Value::from(text));
            }
        }
    }
    let headers = (!headers.is_empty()).then_some(Value::Object(headers));
    let tenant = event.tenant.as_deref().or(cause.map(|(tenant, _)| tenant));
    let row = sqlx::query_file!(
        "src/pg/emit.sql",
        event.exchange,
        event.routing_key,
        event.payload,
        headers,
        event.content_type.as_deref(),
        event.message_id.as_deref(),
        event.ordering_key.as_deref(),
        event.delay.map(|delay| delay.as_secs_f64()),
        event.kind.as_deref(),
        event.source.as_deref(),
        event.correlation_id.as_deref(),
        event.reply_to.as_deref(),
        event.app_id,
        tenant
    )
    .fetch_one(connection)
    .await?;
    Ok(row.id)
}
