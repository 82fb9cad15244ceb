//! What is held by leases, as operators list and end it.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;

/// A step of a key, without what it brought.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LeaseStep {
    pub(crate) name: String,
    /// `started`, `done` or `refused`.
    pub(crate) state: String,
    /// Whether it may be called again, as it was said before the call.
    pub(crate) repeat: Option<String>,
    /// How often it was refused.
    pub(crate) round: i32,
    pub(crate) started_at: Option<DateTime<Utc>>,
    pub(crate) done_at: Option<DateTime<Utc>>,
}

impl LeaseStep {
    /// Those of a key's row, by the time of their beginning.
    pub(crate) fn of_row(steps: &str) -> Vec<Self> {
        let known: BTreeMap<String, Self> = serde_json::from_str(steps).unwrap_or_default();
        let mut steps: Vec<Self> = known.into_iter().map(|(name, step)| Self { name, ..step }).collect();
        steps.sort_by_key(|step| step.started_at.or(step.done_at));
        steps
    }
}

/// A key that a run holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct HeldLease {
    pub(crate) tenant: String,
    pub(crate) consumer: String,
    pub(crate) key: String,
    /// The run's name.
    pub(crate) owner: String,
    /// The fencing token.
    pub(crate) token: i64,
    /// When it was claimed.
    pub(crate) since: DateTime<Utc>,
    /// When the lease ends, unless it is renewed.
    pub(crate) ends_at: DateTime<Utc>,
    /// It has ended: nothing renews it, and nobody has taken the key over.
    pub(crate) is_over: bool,
    /// Until it ends, or since it has ended, which is negative. It changes with each look, so rows have `ends_at` alone.
    #[serde(skip)]
    pub(crate) remaining: TimeDelta,
    /// Nothing makes the lease end later.
    pub(crate) run_ends_at: DateTime<Utc>,
    /// Runs that ended, and told how.
    pub(crate) attempts: i32,
    /// Runs that ended without a word.
    pub(crate) crash_attempts: i32,
    /// `None` where the login may not read them.
    pub(crate) steps: Option<Vec<LeaseStep>>,
}

impl HeldLease {
    /// What follows where the key is taken from its holder, for whoever decides that: a sentence each.
    pub(crate) fn consequences(&self) -> Vec<String> {
        let mut told = vec![
            "The run is not stopped: where it is at work, it goes on until its next step, renewal or end, and is fenced there: nothing of \
             it counts any more."
                .to_owned(),
            "What it has called outside has happened, a call of this moment too; the next copy of the message runs at once.".to_owned(),
        ];
        let begun = self.steps.iter().flatten().filter(|step| step.state == "started");
        told.extend(begun.map(|step| match step.repeat.as_deref() {
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
        told
    }
}

/// Which of them; `None` means any.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseFilter {
    pub(crate) tenant: Option<String>,
    pub(crate) consumer: Option<String>,
    pub(crate) key: Option<String>,
    /// Only those whose time is over.
    pub(crate) is_over: bool,
    /// Behind the one of this consumer, token, tenant and key.
    pub(crate) after: Option<(String, i64, String, String)>,
    pub(crate) limit: i64,
}

/// What is held, the oldest first within a consumer; `now` by the database's clock.
pub(crate) async fn held_leases(
    connection: &mut PgConnection,
    filter: &LeaseFilter,
    now: DateTime<Utc>,
) -> Result<Vec<HeldLease>, sqlx::Error> {
    let after = filter.after.as_ref();
    let rows = sqlx::query_file!(
        "src/pg/leases_held.sql",
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

/// Steps for whoever may read them: an auditor may not.
async fn add_steps(connection: &mut PgConnection, leases: &mut [HeldLease]) -> Result<(), sqlx::Error> {
    let allowed = sqlx::query_scalar!(
        r#"select has_column_privilege('oncely.idempotency_keys', 'steps', 'select') as "allowed!""#
    );
    if leases.is_empty() || !allowed.fetch_one(&mut *connection).await? {
        return Ok(());
    }
    let of = |part: fn(&HeldLease) -> &String| leases.iter().map(part).cloned().collect::<Vec<String>>();
    let (tenants, consumers, keys) =
        (of(|lease| &lease.tenant), of(|lease| &lease.consumer), of(|lease| &lease.key));
    let rows = sqlx::query_file!("src/pg/lease_steps.sql", &tenants, &consumers, &keys);
    let mut found: HashMap<(String, String, String), Vec<LeaseStep>> = HashMap::new();
    for row in rows.fetch_all(connection).await? {
        found.entry((row.tenant, row.consumer, row.key)).or_default().push(LeaseStep {
            name: row.name,
            state: row.state,
            repeat: row.repeat,
            round: row.round,
            started_at: row.started_at,
            done_at: row.done_at,
        });
    }
    for lease in leases {
        let name = (lease.tenant.clone(), lease.consumer.clone(), lease.key.clone());
        lease.steps = Some(found.remove(&name).unwrap_or_default());
    }
    Ok(())
}

/// Takes a key from the run that holds it by this lease, and records it; false where another one has it now, or none.
pub(crate) async fn revoke_lease(
    connection: &mut PgConnection,
    lease: &HeldLease,
    user: &str,
    note: Option<&str>,
) -> Result<bool, sqlx::Error> {
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

/// What is held of a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HeldCount {
    pub(crate) consumer: String,
    pub(crate) held: i64,
    /// Of those: nothing renews them, and nobody has taken the key over.
    pub(crate) over: i64,
    /// When the oldest was claimed.
    pub(crate) oldest: DateTime<Utc>,
    /// When the one ends, or ended, that ends first.
    pub(crate) first_end: DateTime<Utc>,
}

/// What is held, by consumer, each counted up to 10,000. The counts alone are read: nothing of whose keys they are.
pub(crate) async fn held_counts(
    connection: &mut PgConnection,
    now: DateTime<Utc>,
) -> Result<Vec<HeldCount>, sqlx::Error> {
    sqlx::query_as!(
        HeldCount,
        // From one consumer to the next by the index: one that holds much hides no other.
        r#"with recursive names as (
            (
                select i.consumer from oncely.idempotency_keys as i
                where i.owner is not null order by i.consumer limit 1
            )
            union all
            select (
                select i.consumer from oncely.idempotency_keys as i
                where i.owner is not null and i.consumer > n.consumer order by i.consumer limit 1
            )
            from names as n
            where n.consumer is not null
        )
        select n.consumer as "consumer!", count(*) as "held!",
            count(*) filter (where h.not_before <= $1) as "over!",
            oncely.bounded(to_timestamp(min(h.fencing_token) / 1000000.0)) as "oldest!",
            oncely.bounded(min(h.not_before)) as "first_end!"
        from names as n
        cross join lateral (
            select i.fencing_token, i.not_before
            from oncely.idempotency_keys as i
            where i.owner is not null and i.consumer = n.consumer
            order by i.fencing_token
            limit 10000
        ) as h
        group by n.consumer
        order by n.consumer"#,
        now
    )
    .fetch_all(connection)
    .await
}
