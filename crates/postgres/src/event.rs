//! Writes events in the transaction of the effect.

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use oncely_core::event::Event;
use oncely_core::message::{HeaderValue, RawMessage};

/// Writes an event in the caller's transaction; it is published after the commit. Returns the id of the event.
///
/// # Errors
/// If the event is too large (SQLSTATE `ONC04`), can't be published in this form (`ONC05`), or can't be inserted.
pub async fn emit(connection: &mut PgConnection, event: &Event) -> sqlx::Result<Uuid> {
    emit_for(connection, event, None).await
}

/// Writes an event caused by a delivery, which passes on its tenant and its W3C trace context unless the event has its own.
pub async fn emit_for(
    connection: &mut PgConnection,
    event: &Event,
    cause: Option<(&str, &RawMessage)>,
) -> sqlx::Result<Uuid> {
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
        "src/emit.sql",
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
