//! What is found: read by our own SQL, AMQP and Redis commands, without a line of the product's code.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::{PgConnection, Row as _};

use super::events::Events;
use super::fairness::Fairness;
use super::ladder::{Meanwhile, Step, read_trail};
use super::leases::Leases;
use super::ledger::Key;
use super::letter::Letter;
use super::mirror::Entry;
use super::observed::Observed;
use super::proxied::Proxied;
use super::requests::Requests;
use super::watched::Watched;

/// Everything that the judgement is made of.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Sum of the effects by key.
    pub effects: BTreeMap<Key, i64>,
    /// Digest, attempt and session of each committed run, by key.
    pub runs: BTreeMap<Key, Vec<(String, i32, String)>>,
    /// Status by key.
    pub status: BTreeMap<Key, String>,
    /// Audit rows `completed`, by key.
    pub completed: BTreeMap<Key, i64>,
    /// Audit rows `refused`, by key.
    pub refused: BTreeMap<Key, i64>,
    /// Records that never left the mirror queue.
    pub mirror_queue: i64,
    /// What was told the world, and what of it arrived.
    pub events: Events,
    /// What was in the dead-letter queue.
    pub dead: BTreeSet<Letter>,
    /// What was left in the work queue and the retry queues.
    pub queued: BTreeSet<Letter>,
    /// Mirror entries that no committed row explains, over all samples.
    pub stale_mirror: BTreeSet<Entry>,
    /// Completed keys without a mirror entry, where every one must have one.
    pub missing_mirror: BTreeSet<String>,
    /// Mirror entries that were looked at, over all samples.
    pub mirrored: u64,
    /// For each fault, how long after its end the work went on; `None`: not within the limit.
    pub recoveries: Vec<(String, Option<Duration>)>,
    /// Most memory of a process, and whose.
    pub memory: Option<(String, u64)>,
    /// Failed runs and dead letters by key, in the order of time.
    pub trail: BTreeMap<Key, Vec<Step>>,
    /// What a verdict may rest on.
    pub meanwhile: Meanwhile,
    /// Who waited.
    pub fairness: Fairness,
    /// What was answered with a no.
    pub answered: BTreeSet<Key>,
    /// What an operator has thrown away.
    pub discarded: BTreeSet<Key>,
    /// Days that went by at once.
    pub days: i64,
    /// On which of them each key took effect.
    pub day_of: BTreeMap<Key, i64>,
    /// For how many days a key must be remembered, and after how many it must be forgotten; `None`: for ever, and never.
    pub retention: Option<(i64, i64)>,
    /// Who ran what a stranger had left lying about.
    pub trespasses: Vec<String>,
    /// Rows of the trail that lie in no partition of their own, where none may.
    pub unpartitioned: i64,
    /// What those saw who watched.
    pub watched: Watched,
    /// What ran under leases, and what it called outside.
    pub leases: Leases,
    /// What those were answered who asked over HTTP.
    pub requests: Requests,
    /// What went through gateways.
    pub proxied: Proxied,
    /// What an observer saw.
    pub observed: Observed,
    /// Bodies are to be encrypted.
    pub encrypted: bool,
    /// Those that are not.
    pub plaintext: Vec<String>,
    /// Sums that are not what they should be.
    pub books: Vec<String>,
    /// Payloads that differ in their bytes alone are one and the same to the consumer, at times.
    pub alike: bool,
}

/// Letters whose bodies everybody can read who reads the table.
const PLAINTEXT: &str = "select format('%s/%s: %s', tenant, key, reason)
    from oncely.dead_letters where body is not null and encrypted_by is null and not from_client";

impl Evidence {
    /// Reads the books and the product's tables.
    pub async fn read_tables(&mut self, connection: &mut PgConnection, consumer: &str) -> anyhow::Result<()> {
        let key = |row: &sqlx::postgres::PgRow| -> Key { (row.get(0), row.get(1)) };
        let rows = sqlx::query("select tenant, key, sum(n)::bigint from judge.effects group by tenant, key")
            .fetch_all(&mut *connection)
            .await?;
        self.effects = rows.iter().map(|row| (key(row), row.get(2))).collect();
        let rows = sqlx::query(
            "select tenant, key, digest, attempt, application || ' on day ' || day from judge.log",
        )
        .fetch_all(&mut *connection)
        .await?;
        self.runs.clear();
        for row in &rows {
            self.runs.entry(key(row)).or_default().push((row.get(2), row.get(3), row.get(4)));
        }
        let rows =
            sqlx::query("select tenant, key, status::text from oncely.idempotency_keys where consumer = $1")
                .bind(consumer)
                .fetch_all(&mut *connection)
                .await?;
        self.status = rows.iter().map(|row| (key(row), row.get(2))).collect();
        for (outcome, rows_of) in [("completed", &mut self.completed), ("refused", &mut self.refused)] {
            let rows = sqlx::query(
                "select tenant, key, count(*) from oncely.audit
                 where consumer = $1 and outcome = $2 and tenant not like 'erased-%' group by tenant, key",
            )
            .bind(consumer)
            .bind(outcome)
            .fetch_all(&mut *connection)
            .await?;
            *rows_of = rows.iter().map(|row| (key(row), row.get(2))).collect();
        }
        self.mirror_queue =
            sqlx::query("select count(*) from oncely.mirror_queue").fetch_one(&mut *connection).await?.get(0);
        self.read_books(connection).await
    }

    /// What the judge alone keeps.
    async fn read_books(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        sqlx::query("select judge.note()").execute(&mut *connection).await?;
        self.trail = read_trail(&mut *connection).await?;
        for (query, keys) in [
            ("select tenant, key from judge.discarded", &mut self.discarded),
            ("select tenant, key from judge.refused", &mut self.answered),
        ] {
            let rows = sqlx::query(query).fetch_all(&mut *connection).await?;
            *keys = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        }
        self.days = sqlx::query("select judge.today()::bigint").fetch_one(&mut *connection).await?.get(0);
        // What was aged by itself took effect earlier.
        let rows = sqlx::query(
            "select tenant, key, max(day)::bigint - coalesce(max(days), 0)
             from judge.log left join judge.aged using (tenant, key) group by tenant, key",
        )
        .fetch_all(&mut *connection)
        .await?;
        self.day_of = rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        let rows = sqlx::query("select distinct who || ' ran ' || what from judge.trespasses")
            .fetch_all(&mut *connection)
            .await?;
        self.trespasses = rows.iter().map(|row| row.get(0)).collect();
        if self.encrypted {
            self.plaintext = sqlx::query_scalar(PLAINTEXT).fetch_all(&mut *connection).await?;
        }
        let row = sqlx::query(
            "select (select sum(n) from judge.hot)::bigint,
                (select count(*) * 2 from judge.log where beside = 'hot')::bigint",
        )
        .fetch_one(&mut *connection)
        .await?;
        let (sum, wanted): (i64, i64) = (row.get(0), row.get(1));
        self.books.clear();
        if sum != wanted {
            self.books.push(format!("hot rows count {sum}, the log {wanted}"));
        }
        let rows = sqlx::query(
            "select format('%s/%s has the balance %s, and the log says %s', tenant, account, balance, total)
             from judge.wrong_balances",
        )
        .fetch_all(&mut *connection)
        .await?;
        self.books.extend(rows.iter().map(|row| row.get::<String, _>(0)));
        Ok(())
    }

    /// Did another payload of the key take effect that may have been the same to the consumer?
    #[must_use]
    pub(super) fn took_effect_alike(&self, key: &Key) -> bool {
        self.alike && self.runs.contains_key(key)
    }

    /// Digests of all committed runs, by key.
    #[must_use]
    pub fn ran(&self, key: &Key, digest: &str) -> bool {
        self.runs.get(key).is_some_and(|runs| runs.iter().any(|(ran, _, _)| ran == digest))
    }
}
