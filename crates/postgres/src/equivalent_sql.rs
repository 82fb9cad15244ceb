//! SQL statements shown to operators: they return the rows that a page shows. Oncely runs none of them (a test explains each).

use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, Utc};
use uuid::Uuid;

use super::event_operator::EventFilter;
use super::lease_list::LeaseFilter;
use super::letter_list::LetterFilter;
use super::trail::TrailFilter;
use oncely_core::shown;

/// Formats a text as an SQL literal, valid under any `standard_conforming_strings`, with hidden characters escaped.
fn format_literal(text: &str) -> String {
    if !text.chars().any(|character| character == '\\' || shown::is_hidden(character)) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut literal = "E'".to_owned();
    for character in text.chars() {
        let _ = match character {
            '\'' => write!(literal, "''"),
            '\\' => write!(literal, "\\\\"),
            hidden if shown::is_hidden(hidden) && u32::from(hidden) > 0xffff => {
                write!(literal, "\\U{:08X}", u32::from(hidden))
            }
            hidden if shown::is_hidden(hidden) => write!(literal, "\\u{:04X}", u32::from(hidden)),
            plain => write!(literal, "{plain}"),
        };
    }
    literal.push('\'');
    literal
}

/// Formats a time as an SQL literal.
fn format_instant(at: DateTime<Utc>) -> String {
    format!("timestamptz '{}'", at.to_rfc3339_opts(SecondsFormat::Micros, true))
}

/// Formats a `where` clause with the given conditions; empty without any.
fn format_where(conditions: impl IntoIterator<Item = Option<String>>) -> String {
    let found: Vec<String> = conditions.into_iter().flatten().collect();
    if found.is_empty() { String::new() } else { format!("\nwhere {}", found.join("\n  and ")) }
}

/// Formats the comparison of a column with a value; `None` without a value.
fn format_equality(column: &str, value: Option<&str>) -> Option<String> {
    value.map(|value| format!("{column} = {}", format_literal(value)))
}

/// Formats the comparison of a key, by the index on its hash; `None` without a key.
fn format_key_condition(key: Option<&str>) -> Option<String> {
    let key = format_literal(key?);
    Some(format!("hashtextextended(key, 0) = hashtextextended({key}, 0)\n  and key = {key}"))
}

/// Returns the statement for the numbers of the last 15 minutes.
pub fn overview() -> String {
    "select date_bin('1 minute', at, 'epoch') as minute, consumer, sum(completed + refused) as done, sum(duplicates) as duplicates,\n    \
     sum(retried) as retried, sum(dead_lettered) as dead_letters\nfrom oncely.stats\nwhere at > now() - interval '15 minutes'\n\
     group by 1, 2\norder by 1 desc, 2;"
        .to_owned()
}

/// Returns the statement for operators' actions.
pub fn actions() -> String {
    "select occurred_at, actor, verb, count, reason, filter\nfrom oncely.operator_actions\norder by occurred_at desc\nlimit 20;".to_owned()
}

/// Returns the statement for the registered consumers.
pub fn consumers() -> String {
    "select c.consumer, c.retention, c.redelivery_horizon, p.paused_at, p.paused_until, p.paused_by, p.reason\nfrom oncely.consumers as c\n\
     left join oncely.controls as p using (consumer)\norder by consumer;"
        .to_owned()
}

/// Returns the statement for processes by their heartbeats.
pub fn processes() -> String {
    "select kind, name, state, reason, version, host, pid, config_digest, started_at, last_seen_at\nfrom oncely.processes\n\
     order by kind, name;"
        .to_owned()
}

/// Returns the statement for a consumer's numbers.
pub fn consumer(name: &str) -> String {
    format!(
        "select at, sum(completed + refused) as done, sum(duplicates) as duplicates, sum(retried) as retried,\n    \
         sum(dead_lettered) as dead_letters\nfrom oncely.stats\nwhere consumer = {}\n  and at > now() - interval '1 hour'\ngroup by at\norder by at desc;",
        format_literal(name)
    )
}

/// Returns the statement for a consumer's keys that failed and are tried again.
pub fn failing(name: &str) -> String {
    format!(
        "select tenant, key, attempts, created_at, not_before, last_error\nfrom oncely.idempotency_keys\nwhere status = 'IN_PROGRESS'\n  \
         and consumer = {}\n  and attempts > 0\norder by created_at\nlimit 20;",
        format_literal(name)
    )
}

/// Returns the statement for the audit trail.
pub fn trail(filter: &TrailFilter, since: DateTime<Utc>, until: Option<DateTime<Utc>>) -> String {
    let conditions = format_where([
        Some(format!("occurred_at >= {}", format_instant(since))),
        until.map(|until| format!("occurred_at < {}", format_instant(until))),
        format_equality("tenant", filter.tenant.as_deref()),
        format_equality("consumer", filter.consumer.as_deref()),
        format_key_condition(filter.key.as_deref()),
        format_equality("outcome", filter.outcome.as_deref()),
        format_equality("reason", filter.reason.as_deref()),
        format_equality("worker", filter.worker.as_deref()),
    ]);
    format!(
        "select occurred_at, tenant, consumer, key, outcome, reason, attempt, duration_us, detail, queue, worker\nfrom oncely.audit{conditions}\n\
         order by occurred_at desc\nlimit 50;"
    )
}

/// Returns the statements for a key: the row, the trail, the letters.
pub fn key(tenant: &str, consumer: &str, key: &str) -> [String; 3] {
    let (t, c, k) = (format_literal(tenant), format_literal(consumer), format_literal(key));
    let by_key = format_key_condition(Some(key)).unwrap_or_default();
    [
        format!(
            "select status, attempts, created_at, completed_at, expires_at, reason, last_error\nfrom oncely.idempotency_keys\nwhere tenant = {t}\n  \
             and consumer = {c}\n  and key = {k};"
        ),
        format!(
            "select occurred_at, outcome, reason, attempt, duration_us, detail, queue, worker, trace_id\nfrom oncely.audit\nwhere {by_key}\n  \
             and tenant = {t}\n  and consumer = {c}\norder by occurred_at;"
        ),
        format!(
            "select id, dead_lettered_at, reason, state, generation, times, detail\nfrom oncely.dead_letters\nwhere {by_key}\n  and tenant = {t}\n  \
             and consumer = {c}\norder by dead_lettered_at;"
        ),
    ]
}

/// Builds the conditions of a filter of dead letters; `None` for a field that matches any.
fn build_letter_conditions(filter: &LetterFilter) -> Vec<Option<String>> {
    let states = filter.states.as_ref().map(|states| {
        let states: Vec<String> = states.iter().map(|state| format_literal(state)).collect();
        format!("state in ({})", states.join(", "))
    });
    vec![
        format_equality("tenant", filter.tenant.as_deref()),
        format_equality("consumer", filter.consumer.as_deref()),
        format_equality("queue", filter.queue.as_deref()),
        format_equality("reason", filter.reason.as_deref()),
        format_equality("failure_group", filter.group.as_deref()),
        format_key_condition(filter.key.as_deref()),
        filter.since.map(|since| format!("dead_lettered_at >= {}", format_instant(since))),
        filter.until.map(|until| format!("dead_lettered_at < {}", format_instant(until))),
        states,
    ]
}

/// Returns the statement for dead letters by failure group.
pub fn letter_groups(filter: &LetterFilter) -> String {
    let conditions = format_where(build_letter_conditions(filter));
    format!(
        "select consumer, failure_group, max(detail) as detail, count(*) filter (where state = 'waiting') as waiting,\n    \
         count(*) filter (where generation > 1) as came_back, min(dead_lettered_at) as first_at, max(dead_lettered_at) as last_at\n\
         from oncely.dead_letters{conditions}\ngroup by consumer, failure_group\norder by waiting desc;"
    )
}

/// Returns the statement for dead letters.
pub fn letters(filter: &LetterFilter) -> String {
    let conditions = format_where(build_letter_conditions(filter));
    format!(
        "select id, dead_lettered_at, tenant, consumer, key, reason, state, detail\nfrom oncely.dead_letters{conditions}\n\
         order by dead_lettered_at desc\nlimit 50;"
    )
}

/// Returns the statement for one dead letter.
pub fn letter(id: Uuid) -> String {
    format!("select *\nfrom oncely.dead_letters\nwhere id = '{id}';")
}

/// Returns the statement for unpublished events.
pub fn events(filter: &EventFilter) -> String {
    let conditions = format_where([
        format_equality("tenant", filter.tenant.as_deref()),
        format_equality("exchange", filter.exchange.as_deref()),
        format_equality("routing_key", filter.routing_key.as_deref()),
        format_equality("ordering_key", filter.ordering_key.as_deref()),
        format_equality("reason", filter.reason.as_deref()),
        format_equality("state", filter.state.as_deref()),
    ]);
    format!(
        "select id, created_at, available_at, tenant, exchange, routing_key, ordering_key, state, attempts, reason, last_error\n\
         from oncely.events{conditions}\norder by created_at\nlimit 50;"
    )
}

/// Returns the statement for keys held by leases.
pub fn leases(filter: &LeaseFilter) -> String {
    let conditions = format_where([
        Some("owner is not null".to_owned()),
        format_equality("consumer", filter.consumer.as_deref()),
        format_equality("tenant", filter.tenant.as_deref()),
        filter.is_over.then(|| "not_before <= now()".to_owned()),
    ]);
    format!(
        "select tenant, consumer, key, owner, fencing_token, not_before as ends_at, run_ends_at, crash_attempts\n\
         from oncely.idempotency_keys{conditions}\norder by consumer, fencing_token\nlimit 50;"
    )
}

/// Returns the statement that takes a key from its run.
pub fn revoke_lease(tenant: &str, consumer: &str, key: &str) -> String {
    format!(
        "select oncely.revoke_lease({}, {}, {}, 'why');",
        format_literal(tenant),
        format_literal(consumer),
        format_literal(key)
    )
}

/// Returns the statement that settles a key.
pub fn settle_claim(tenant: &str, consumer: &str, key: &str) -> String {
    format!(
        "select oncely.settle_claim({}, {}, {}, false, 'how you know');",
        format_literal(tenant),
        format_literal(consumer),
        format_literal(key)
    )
}

/// Returns the statement for the mirror queue.
pub fn mirror_queue() -> String {
    "select count(*), min(created_at) as oldest\nfrom (select created_at from oncely.mirror_queue order by created_at limit 10000) as m;".to_owned()
}

/// Returns the statement for the actions of an operation.
pub fn operation(id: Uuid) -> String {
    format!(
        "select occurred_at, actor, verb, count, reason\nfrom oncely.operator_actions\nwhere filter ->> 'operation' = '{id}'\norder by occurred_at;"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_key_stays_a_text() {
        let filter = TrailFilter { key: Some("'; drop table x; --".to_owned()), ..TrailFilter::default() };
        let statement = trail(&filter, DateTime::UNIX_EPOCH, None);
        assert!(statement.contains("key = '''; drop table x; --'"), "{statement}");
    }

    #[test]
    fn a_statement_means_the_same_however_strings_are_read_and_hides_nothing() {
        assert_eq!(format_literal("it's"), "'it''s'");
        assert_eq!(format_literal("\\'; create table pwned(); --"), "E'\\\\''; create table pwned(); --'");
        assert_eq!(format_literal("tab\there\u{202e}\u{e0041}"), "E'tab\\u0009here\\u202E\\U000E0041'");
    }
}
