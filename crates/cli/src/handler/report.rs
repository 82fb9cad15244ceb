//! Output of `oncely handler test`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::output;
use oncely_core::decide::KeyDecision;
use oncely_core::fault::Fault;
use oncely_core::outcome::Outcome;
use oncely_core::retry::rung_name;
use oncely_postgres::{EmittedEvent, TableChanges};
use oncely_worker::worker::{DryRun, DryRunReport, Effect, KnownKey, TriedBatch, TriedMessage};

/// Returns whether a message needs no attention: it took effect, was refused, or is a duplicate.
pub(super) fn is_good(message: &TriedMessage) -> bool {
    message.outcome.has_completed_key() || matches!(message.outcome, Outcome::Duplicate(_))
}

/// Formats the report as text. `numbers`: the line numbers of the messages.
pub(super) fn format_text(dry_run: &DryRun<'_>, numbers: &[usize], report: &DryRunReport) -> String {
    let DryRunReport { messages, batches } = report;
    let how = if dry_run.one_by_one { "each by itself" } else { "one after another" };
    let mut lines = vec![format!(
        "{} · {} · {}, {how} · all rolled back",
        output::escape(dry_run.consumer.name.as_str()),
        output::escape(&dry_run.function.name),
        output::format_count(messages.len(), "message"),
    )];
    for (number, one) in numbers.iter().zip(messages) {
        lines.push(String::new());
        let identity = match (&one.identity.tenant, &one.identity.key) {
            (Some(tenant), Some(key)) => {
                format!("{} · {}", output::escape(tenant.as_str()), output::escape(key.as_str()))
            }
            (Some(tenant), None) => format!("{} · ?", output::escape(tenant.as_str())),
            _ => "?".to_owned(),
        };
        lines.push(format!(
            "line {number}  {identity}  {}",
            output::escape(&describe_outcome(dry_run, numbers, one))
        ));
        let mut add = |what: &str, text: String| lines.push(format!("    {what:<9} {text}"));
        if let Outcome::Completed { response: Some(response), .. } = &one.outcome {
            add("response", output::escape(response));
        }
        if let Some(effect) = &one.effect {
            effect.changes.iter().for_each(|table| add("wrote", output::escape(&format_changes(table))));
            match &effect.events {
                Some(events) => {
                    events.iter().for_each(|one| add("emitted", output::escape(&format_event(one))))
                }
                None if effect.emitted > 0 => {
                    let advice = "to see them, the login also needs the role oncely_operator";
                    add("emitted", format!("{}; {advice}", output::format_count(effect.emitted, "event")));
                }
                None => {}
            }
        }
        if let Some(known) = &one.database {
            add("database", output::escape(&describe_known_key(known)));
        }
        if one.is_session_lost {
            add(
                "session",
                "it took the session with it: what follows does not see what came before".to_owned(),
            );
        }
    }
    lines.push(String::new());
    lines.extend(batches.iter().filter_map(|batch| describe_batch(numbers, batch)));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for one in messages {
        *counts.entry(one.outcome.as_str()).or_default() += 1;
    }
    let counts = counts.into_iter().map(|(outcome, count)| format!("{count} {outcome}"));
    lines.push(counts.collect::<Vec<_>>().join(", "));
    lines.join("\n")
}

/// Describes a worker's verdict on a message in one line.
fn describe_outcome(dry_run: &DryRun<'_>, numbers: &[usize], one: &TriedMessage) -> String {
    let what = one.outcome.as_str();
    let first = one.leader.and_then(|leader| numbers.get(leader));
    let of = match (&one.outcome, first) {
        (_, None) => String::new(),
        (Outcome::Duplicate(_), Some(line)) => format!(" of line {line}"),
        (_, Some(line)) => format!(" (the key of line {line})"),
    };
    let detail = match &one.outcome {
        Outcome::Completed { .. } | Outcome::Duplicate(_) => String::new(),
        Outcome::Refused { reason, .. } => format!(": {reason}"),
        Outcome::Retried { attempt, delay, detail, .. } => format!(
            " in {}, after run {attempt} of {}: {detail}",
            rung_name(*delay),
            dry_run.consumer.retry.max_attempts
        ),
        Outcome::Postponed { delay } => format!(" by {}", rung_name(*delay)),
        Outcome::Undecided { fault, .. } => {
            format!(", and waits until another message succeeds (perhaps not its fault): {fault}")
        }
        Outcome::DeadLettered { rejection, .. } => format!(" as {}: {}", rejection.reason, rejection.detail),
    };
    format!("{what}{of}{detail}")
}

/// Formats the numbers of changed rows of a table.
fn format_changes(table: &TableChanges) -> String {
    let TableChanges { schema, table, inserted, updated, deleted, .. } = table;
    let parts = [(inserted, "inserted"), (updated, "updated"), (deleted, "deleted")];
    let parts = parts.into_iter().filter(|(rows, _)| **rows > 0);
    let parts: Vec<String> = parts.map(|(rows, what)| format!("{rows} {what}")).collect();
    format!("{schema}.{table}: {}", parts.join(", "))
}

/// Formats the address of an emitted event.
fn format_event(event: &EmittedEvent) -> String {
    let exchange = if event.exchange.is_empty() { "(default exchange)" } else { &event.exchange };
    let mut text = format!("{exchange} {}", event.routing_key);
    for (what, value) in [("type", &event.kind), ("ordering key", &event.ordering_key)] {
        if let Some(value) = value {
            text.push_str(&format!(", {what} {value}"));
        }
    }
    text
}

/// Describes whether a worker would run a message, given its key's record in the database.
fn describe_known_key(key: &KnownKey) -> String {
    match &key.decision {
        KeyDecision::Duplicate => "it took effect before: a worker would not run it".to_owned(),
        KeyDecision::Reject(rejection) => {
            format!("a worker would not run it: {} ({})", rejection.reason, rejection.detail)
        }
        KeyDecision::Leased => "a run under a lease has it: a worker would not run it".to_owned(),
        KeyDecision::Retake => {
            format!("its next run is number {}", key.record.attempts.saturating_add(1))
        }
    }
}

/// Describes the result of a call with several messages; of a call with one only its failure, since the message has its own line. `None` if
/// there is nothing to describe.
fn describe_batch(numbers: &[usize], batch: &TriedBatch) -> Option<String> {
    let line = |position: &usize| numbers.get(*position).copied().unwrap_or_default();
    let lines = match &batch.messages[..] {
        [] => return None,
        [_] if batch.result.is_ok() => return None,
        [one] => format!("line {}", line(one)),
        [first, .., last] => {
            format!("{} of the lines {} to {}", batch.messages.len(), line(first), line(last))
        }
    };
    Some(match &batch.result {
        Ok(()) => format!("in one batch, {lines} succeed, too"),
        Err(fault) => format!(
            "in one batch, {lines} fail, and by themselves they don't: a worker runs such a batch in parts, down to single messages: {}",
            output::escape(&fault.to_string())
        ),
    })
}

/// Formats the report as JSON, with the schema oncely.handler/1.
pub(super) fn to_json(dry_run: &DryRun<'_>, numbers: &[usize], report: &DryRunReport) -> Value {
    let line = |position: &usize| numbers.get(*position).copied();
    let messages =
        numbers.iter().zip(&report.messages).map(|(number, one)| message_to_json(*number, one, line));
    let batches = report.batches.iter().map(|batch| {
        json!({
            "lines": batch.messages.iter().filter_map(line).collect::<Vec<_>>(),
            "succeeds": batch.result.is_ok(),
            "sqlstate": batch.result.as_ref().err().and_then(|fault| fault.code.clone()),
            "detail": batch.result.as_ref().err().map(Fault::to_string),
        })
    });
    json!({
        "consumer": dry_run.consumer.name.as_str(),
        "function": dry_run.function.name,
        "one_by_one": dry_run.one_by_one,
        "attempt": dry_run.attempt,
        "messages": messages.collect::<Vec<_>>(),
        "batches": batches.collect::<Vec<_>>(),
    })
}

/// Formats a message and its outcome as JSON. `line`: returns the line number of a position.
fn message_to_json(number: usize, one: &TriedMessage, line: impl Fn(&usize) -> Option<usize>) -> Value {
    let (sqlstate, detail) = match &one.outcome {
        Outcome::Refused { reason, .. } => (None, Some(reason.clone())),
        Outcome::Retried { code, detail, .. } => (code.clone(), Some(detail.clone())),
        Outcome::DeadLettered { code, rejection, .. } => (code.clone(), Some(rejection.detail.clone())),
        Outcome::Undecided { fault, .. } => (fault.code.clone(), Some(fault.to_string())),
        Outcome::Completed { .. } | Outcome::Duplicate(_) | Outcome::Postponed { .. } => (None, None),
    };
    let delay = match &one.outcome {
        Outcome::Retried { delay, .. } | Outcome::Postponed { delay } => Some(rung_name(*delay)),
        _ => None,
    };
    let response = match &one.outcome {
        // PostgreSQL's JSON holds numbers that Rust's can't: then it is a text.
        Outcome::Completed { response: Some(response), .. } => {
            serde_json::from_str(response).unwrap_or_else(|_| Value::from(response.as_str()))
        }
        _ => Value::Null,
    };
    let effect = one.effect.as_ref();
    let part = |part: &Option<oncely_core::identity::IdentityPart>| {
        part.as_ref().map(|part| part.as_str().to_owned())
    };
    json!({
        "line": number,
        "tenant": part(&one.identity.tenant),
        "key": part(&one.identity.key),
        "outcome": one.outcome.as_str(),
        "reason": one.outcome.reason().map(|reason| reason.as_str()),
        "sqlstate": sqlstate,
        "detail": detail,
        "delay": delay,
        "key_of_line": one.leader.as_ref().and_then(line),
        "response": response,
        "wrote": effect.map(tables_to_json).unwrap_or_default(),
        "emitted": effect.map_or(0, |effect| effect.emitted),
        "events": effect.and_then(|effect| effect.events.as_deref()).map(events_to_json),
        "database": one.database.as_ref().map(|known| json!({
            "status": known.record.status.as_str(),
            "attempts": known.record.attempts,
            "runs": known.decision == KeyDecision::Retake,
        })),
        "session_lost": one.is_session_lost,
    })
}

/// Formats the changed tables as JSON.
fn tables_to_json(effect: &Effect) -> Vec<Value> {
    let table = |table: &TableChanges| {
        json!({
            "schema": table.schema, "table": table.table, "inserted": table.inserted, "updated": table.updated,
            "deleted": table.deleted,
        })
    };
    effect.changes.iter().map(table).collect()
}

/// Formats the emitted events as JSON.
fn events_to_json(events: &[EmittedEvent]) -> Vec<Value> {
    let event = |event: &EmittedEvent| {
        json!({
            "tenant": event.tenant, "exchange": event.exchange, "routing_key": event.routing_key, "type": event.kind,
            "ordering_key": event.ordering_key,
        })
    };
    events.iter().map(event).collect()
}
