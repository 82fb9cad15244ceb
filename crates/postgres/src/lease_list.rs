//! Lists keys held by leases for operators, and takes keys from their runs.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

use super::tenant_groups::group_by_placement;
use super::unit::{fetch_from_unit, list_units};

/// A step of a key, without its result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LeaseStep {
    pub name: String,
    /// `started`, `done` or `refused`.
    pub state: String,
    /// The repetition rule, as stated before the call.
    pub(crate) repeat: Option<String>,
    /// Number of refusals.
    pub round: i32,
    pub started_at: Option<DateTime<Utc>>,
    pub done_at: Option<DateTime<Utc>>,
}

impl LeaseStep {
    /// Parses the steps of a key's row, and sorts them by their start; empty if they can't be parsed.
    pub fn parse_steps(steps: &str) -> Vec<Self> {
        let steps_by_name: BTreeMap<String, Self> = serde_json::from_str(steps).unwrap_or_default();
        let mut steps: Vec<Self> =
            steps_by_name.into_iter().map(|(name, step)| Self { name, ..step }).collect();
        steps.sort_by_key(|step| step.started_at.or(step.done_at));
        steps
    }
}

/// A key that a run holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HeldLease {
    pub tenant: String,
    pub consumer: String,
    pub key: String,
    /// The name of the run.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// When the key was claimed.
    pub since: DateTime<Utc>,
    /// When the lease ends, unless it is renewed.
    pub(crate) ends_at: DateTime<Utc>,
    /// Whether the lease has ended without renewal and no other run has taken the key over.
    pub is_over: bool,
    /// Time until the lease ends; negative since its end. It changes with each query, so serialised rows have `ends_at` alone.
    #[serde(skip)]
    pub remaining: TimeDelta,
    /// The time beyond which the lease is not renewed.
    pub(crate) run_ends_at: DateTime<Utc>,
    /// Number of runs that reported their end.
    pub(crate) attempts: i32,
    /// Number of crashed runs.
    pub crash_attempts: i32,
    /// `None` if the login may not read them.
    pub steps: Option<Vec<LeaseStep>>,
}

impl HeldLease {
    /// Describes the consequences of taking the key from its holder, for the operator who decides it: one sentence each.
    pub fn describe_consequences(&self) -> Vec<String> {
        let mut sentences = vec![
            "The run is not stopped: where it is at work, it goes on until its next step, renewal or end, and is fenced there: of it only \
             the outcome of a call in progress counts."
                .to_owned(),
            "What it has called outside has happened, a call of this moment too; the next copy of the message runs at once.".to_owned(),
        ];
        let started = self.steps.iter().flatten().filter(|step| step.state == "started");
        sentences.extend(started.map(|step| match step.repeat.as_deref() {
            Some("always") => format!("The step {} may have happened; the next run calls it again.", step.name),
            Some("within") => format!(
                "The step {} may have happened; within its window the next run calls it again with the same key, after it the message \
                 is given up as outcome_unknown.",
                step.name
            ),
            Some("ask") => {
                format!("The step {} may have happened; the next run asks the other side.", step.name)
            }
            _ => format!(
                "The step {} may have happened and must not be repeated: the next run gives the message up as outcome_unknown.",
                step.name
            ),
        }));
        sentences
    }
}

/// A filter of leases; `None` matches any.
#[derive(Clone, Debug, Default)]
pub struct LeaseFilter {
    pub tenant: Option<String>,
    pub consumer: Option<String>,
    pub key: Option<String>,
    /// Only leases that have ended.
    pub is_over: bool,
    /// Only leases after this consumer, token, tenant and key.
    pub after: Option<(String, i64, String, String)>,
    pub limit: i64,
}

/// Lists held keys, the oldest first within a consumer; `now` by the database's clock.
pub async fn list_held_leases(
    connection: &mut PgConnection,
    filter: &LeaseFilter,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<HeldLease>> {
    let after = filter.after.as_ref();
    let rows = sqlx::query_file!(
        "src/leases_held.sql",
        filter.consumer.as_deref(),
        filter.tenant.as_deref(),
        filter.key.as_deref(),
        filter.is_over.then_some(now),
        after.map(|(consumer, ..)| consumer.as_str()),
        after.map(|(_, token, ..)| *token),
        after.map(|(.., tenant, _)| tenant.as_str()),
        after.map(|(.., key)| key.as_str()),
        filter.limit
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut leases: Vec<HeldLease> = rows
        .into_iter()
        .map(|row| HeldLease {
            tenant: row.tenant,
            consumer: row.consumer,
            key: row.key,
            owner: row.owner,
            token: row.token,
            since: row.since,
            ends_at: row.ends_at,
            is_over: row.ends_at <= now,
            remaining: row.ends_at - now,
            run_ends_at: row.run_ends_at,
            attempts: row.attempts,
            crash_attempts: row.crash_attempts,
            steps: None,
        })
        .collect();
    add_steps(connection, &mut leases).await?;
    Ok(leases)
}

/// Adds the steps of the leases if the login may read them: an auditor may not.
async fn add_steps(connection: &mut PgConnection, leases: &mut [HeldLease]) -> sqlx::Result<()> {
    let allowed = sqlx::query_scalar!(
        r#"select has_column_privilege('oncely.idempotency_keys', 'steps', 'select') as "allowed!""#
    );
    if leases.is_empty() || !allowed.fetch_one(&mut *connection).await? {
        return Ok(());
    }
    let mut found: HashMap<(String, String, String), Vec<LeaseStep>> = HashMap::new();
    for group in group_by_placement(connection, leases, |lease| lease.tenant.as_str()).await? {
        let to_column = |part: fn(&HeldLease) -> &String| {
            group.iter().map(|lease| part(lease).clone()).collect::<Vec<_>>()
        };
        let rows = sqlx::query_file!(
            "src/lease_steps.sql",
            &to_column(|lease| &lease.tenant),
            &to_column(|lease| &lease.consumer),
            &to_column(|lease| &lease.key)
        );
        for row in rows.fetch_all(&mut *connection).await? {
            found.entry((row.tenant, row.consumer, row.key)).or_default().push(LeaseStep {
                name: row.name,
                state: row.state,
                repeat: row.repeat,
                round: row.round,
                started_at: row.started_at,
                done_at: row.done_at,
            });
        }
    }
    for lease in leases {
        let name = (lease.tenant.clone(), lease.consumer.clone(), lease.key.clone());
        lease.steps = Some(found.remove(&name).unwrap_or_default());
    }
    Ok(())
}

/// Takes a key from the run with this lease, and records it; returns false if another run holds the key, or none does.
pub async fn revoke_lease(
    connection: &mut PgConnection,
    lease: &HeldLease,
    user: &str,
    note: Option<&str>,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"select oncely.revoke_lease($1, $2, $3, $4, $5, $6) as "done!""#,
        lease.tenant,
        lease.consumer,
        lease.key,
        note,
        lease.token,
        user
    )
    .fetch_one(connection)
    .await
}

/// The number of keys held of a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct HeldCount {
    pub consumer: String,
    pub held: i64,
    /// Number of those with an ended lease that no run has taken over.
    pub over: i64,
    /// When the oldest was claimed.
    pub oldest: DateTime<Utc>,
    /// The earliest end of a lease, past or future.
    pub first_end: DateTime<Utc>,
}

/// Counts held keys by consumer, each up to 10,000. Reads the counts alone, without tenants and keys.
pub async fn count_held_leases(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> sqlx::Result<Vec<HeldCount>> {
    let mut counts = BTreeMap::<String, HeldCount>::new();
    for unit in list_units(connection).await? {
        for more in fetch_from_unit!(HeldCount, "src/leases_count.sql", unit, &mut *connection, now)? {
            match counts.entry(more.consumer.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(more);
                }
                Entry::Occupied(mut entry) => {
                    let sum = entry.get_mut();
                    sum.held += more.held;
                    sum.over += more.over;
                    sum.oldest = sum.oldest.min(more.oldest);
                    sum.first_end = sum.first_end.min(more.first_end);
                }
            }
        }
    }
    Ok(counts.into_values().collect())
}
