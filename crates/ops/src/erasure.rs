//! Erases a tenant: its keys, trail, letters, events and rights in PostgreSQL, its keys' tags in Redis, its copies in the dead-letter
//! queues. Messages in the user's own queues, and the effects of its messages, are left to the user.
//!
//! The order allows a crash after any step: run it again then. First the sources of new copies, then the queues, while rows still identify
//! their messages; keys after their tags, which can't be computed without them.

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use crate::letters::{SweepReport, sweep_tenant};
use oncely_amqp::AmqpError;
use oncely_config::Config;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_mirror::{Mirror, Tag, TagKey, read_tag_keys};
use oncely_postgres::{self as pg, Session, TenantCounts, TenantTable};

/// Keys per transaction.
const BATCH_KEYS: i64 = 1_000;
/// A process that was seen within this time is alive, and would write its row again.
const ALIVE_WITHIN: TimeDelta = TimeDelta::minutes(1);

/// The tenant to erase, and the options.
#[derive(Clone, Copy, Debug)]
pub struct Erasure<'a> {
    pub tenant: &'a str,
    /// Whether rows of the trail are deleted; otherwise they stay under a pseudonym.
    pub deletes_trail: bool,
    /// Whether keys within their retention are deleted.
    pub forgets_keys: bool,
    /// The operator's own name; the database adds the login.
    pub user: &'a str,
    pub note: Option<&'a str>,
}

/// The erased rows. It contains no name of the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// Replaces the tenant's name from now on. Random: only this receipt links the two.
    pub pseudonym: String,
    pub erased_at: DateTime<Utc>,
    /// The database's user.
    pub login: String,
    pub keys: u64,
    /// Tags in Redis.
    pub mirror_entries: i64,
    pub mirror_records: u64,
    /// Rows of the trail.
    pub trail: i64,
    /// Whether they were deleted; otherwise they have the pseudonym.
    pub trail_deleted: bool,
    /// Spans of the trail that did not match their seals before.
    pub broken_spans: u64,
    pub letters: u64,
    /// Copies in dead-letter queues.
    pub copies: u64,
    /// Copies there with a header that names the tenant without a mark that proves it: they stay.
    pub unproven_copies: u64,
    /// Dead-letter queues that do not exist.
    pub missing_queues: Vec<String>,
    pub events: u64,
    pub ordering_keys: u64,
    pub rights: u64,
    /// Limits set by operators, and counters of usage.
    pub limits: u64,
    /// Actions of operators that named it.
    pub actions: u64,
    /// Rows that are left.
    pub left: TenantCounts,
}

impl Receipt {
    /// Returns whether Oncely stores nothing of the tenant any more.
    pub fn is_complete(&self) -> bool {
        self.left.total() == 0 && self.unproven_copies == 0
    }
}

impl Erasure<'_> {
    /// Erases the tenant, and returns the receipt. Records the start and the end as actions of the operator.
    ///
    /// # Errors
    /// If a server does not answer, or the login is not the schema's owner: rows erased before that stay erased.
    pub async fn run(&self, config: &Config, session: &mut Session) -> anyhow::Result<Receipt> {
        if self.forgets_keys && config.mirror.is_none() && pg::has_mirror(&mut session.connection).await? {
            anyhow::bail!(
                "nothing was changed: relays of this database have a mirror, and this configuration has none; without [mirror] the tags of the \
                 keys that are forgotten would stay in Redis, and later messages with these keys be taken for duplicates. Run it with the \
                 relays' configuration"
            );
        }
        let pseudonym = format!("erased-{}", Uuid::new_v4());
        let mut receipt = Receipt { pseudonym, trail_deleted: self.deletes_trail, ..Receipt::default() };
        pg::remove_statement_timeout(&mut session.connection).await?;
        // Recorded before the first row is deleted, so that the start is known however the run ends.
        self.record_action(session, "begin erase", &receipt).await?;
        self.discard_letters(config, session, &mut receipt).await?;
        for (table, count) in [
            (TenantTable::DeadLetters, &mut receipt.letters),
            (TenantTable::Events, &mut receipt.events),
            (TenantTable::OrderingKeys, &mut receipt.ordering_keys),
            (TenantTable::MirrorQueue, &mut receipt.mirror_records),
            (TenantTable::Rights, &mut receipt.rights),
        ] {
            *count = pg::erase_rows(&mut session.connection, table, self.tenant).await?;
        }
        for table in [TenantTable::TenantLimits, TenantTable::LetterUsage, TenantTable::LetterGrowth] {
            receipt.limits += pg::erase_rows(&mut session.connection, table, self.tenant).await?;
        }
        self.erase_keys(config, session, &mut receipt).await?;
        self.erase_trail(session, &mut receipt).await?;
        let connection = &mut session.connection;
        receipt.actions = pg::erase_actions(connection, self.tenant, &receipt.pseudonym).await?;
        let now = session.clock.now();
        pg::erase_silent_processes(connection, self.tenant, now - ALIVE_WITHIN).await?;
        receipt.left = pg::count_tenant_rows(connection, self.tenant, now).await?;
        receipt.login = pg::read_login_privileges(connection).await?.login;
        receipt.erased_at = now;
        self.record_action(session, "erase", &receipt).await?;
        Ok(receipt)
    }

    /// Discards the tenant's open dead letters, then removes their copies from all dead-letter queues.
    async fn discard_letters(
        &self,
        config: &Config,
        session: &mut Session,
        receipt: &mut Receipt,
    ) -> anyhow::Result<()> {
        let now = session.clock.now();
        pg::close_letters(&mut session.connection, self.tenant, now).await?;
        let consumers = config.consumers.iter().filter(|consumer| !consumer.is_observer());
        let configured: Vec<String> = consumers.flat_map(|consumer| consumer.queues.clone()).collect();
        let mut queues = pg::list_tenant_queues(&mut session.connection, self.tenant).await?;
        queues.extend(configured);
        queues.sort();
        queues.dedup();
        for queue in queues {
            match sweep_tenant(config, session, &queue, self.tenant).await {
                Ok(SweepReport { dropped, unproven, .. }) => {
                    receipt.copies += dropped;
                    receipt.unproven_copies += unproven;
                }
                Err(error) if is_missing_queue(&error) => receipt.missing_queues.push(queue),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Deletes the tenant's keys in batches, each after its tags in Redis.
    async fn erase_keys(
        &self,
        config: &Config,
        session: &mut Session,
        receipt: &mut Receipt,
    ) -> anyhow::Result<()> {
        let mirror = match &config.mirror {
            Some(settings) => {
                let (current, former) = read_tag_keys(config, &mut session.connection).await?;
                // Entries that were made with another key may still exist.
                Some((Mirror::new(settings)?, [vec![current], former].concat()))
            }
            None => None,
        };
        let tenant = IdentityPart::new(self.tenant.as_bytes())?;
        loop {
            let now = session.clock.now();
            let mut transaction = pg::begin_collection(&mut session.connection).await?;
            if self.forgets_keys {
                pg::block_rebuilds(&mut transaction).await?;
            }
            let erased_keys =
                pg::erase_keys(&mut transaction, self.tenant, BATCH_KEYS, self.forgets_keys, now).await?;
            // A key within its retention may have a record that waits for a relay, or that one has taken. After the keys, so that all their
            // records are seen; before their tags, so that none comes after.
            if self.forgets_keys && !erased_keys.is_empty() {
                receipt.mirror_records += pg::erase_pending_tags(&mut transaction, self.tenant).await?;
            }
            if let Some((mirror, keys)) = &mirror {
                let mut tags: Vec<Tag> = Vec::with_capacity(erased_keys.len());
                for erased in &erased_keys {
                    let identity = Identity {
                        tenant: tenant.clone(),
                        consumer: IdentityPart::new(erased.consumer.as_bytes())?,
                        key: IdentityPart::new(erased.key.as_bytes())?,
                    };
                    let tag =
                        |key: &TagKey| key.tag(&session.cell.epoch, &identity, erased.fingerprint.as_ref());
                    tags.extend(keys.iter().map(tag));
                }
                receipt.mirror_entries +=
                    mirror.remove(&tags, now).await.context("taking keys out of the mirror")?;
            }
            transaction.commit().await?;
            if erased_keys.is_empty() {
                return Ok(());
            }
            receipt.keys += u64::try_from(erased_keys.len())?;
        }
    }

    /// Erases the tenant's rows of the trail, one sealed span after another: deletes them, or replaces the name by the pseudonym.
    async fn erase_trail(&self, session: &mut Session, receipt: &mut Receipt) -> anyhow::Result<()> {
        let salt = [*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()].concat();
        let pseudonym = (!self.deletes_trail).then_some(receipt.pseudonym.as_str());
        let mut place = 0;
        loop {
            let span =
                pg::erase_trail_span(&mut session.connection, self.tenant, pseudonym, &salt, place).await?;
            receipt.trail += span.rows;
            receipt.broken_spans += u64::from(!span.was_whole);
            let Some(next) = span.place else { return Ok(()) };
            place = next;
        }
    }

    /// Records an action of the operator under the pseudonym, which also replaces the tenant's name in the note.
    async fn record_action(
        &self,
        session: &mut Session,
        verb: &str,
        receipt: &Receipt,
    ) -> Result<(), sqlx::Error> {
        let note = self.note.map(|note| note.replace(self.tenant, &receipt.pseudonym));
        let filter = json!({
            "keys": receipt.keys, "mirror_entries": receipt.mirror_entries, "mirror_records": receipt.mirror_records,
            "trail": receipt.trail, "trail_deleted": receipt.trail_deleted, "broken_spans": receipt.broken_spans,
            "letters": receipt.letters, "copies": receipt.copies, "events": receipt.events,
            "ordering_keys": receipt.ordering_keys, "rights": receipt.rights, "actions": receipt.actions,
            "forgets_keys": self.forgets_keys, "left": receipt.left.total(),
        });
        let rows = receipt.keys + receipt.letters + receipt.events + receipt.ordering_keys + receipt.rights;
        let action = pg::Action {
            tenant: &receipt.pseudonym,
            verb,
            user: self.user,
            filter: &filter,
            count: i64::try_from(rows).unwrap_or(i64::MAX).saturating_add(receipt.trail),
            reason: note.as_deref(),
        };
        pg::record_action(&mut session.connection, &action).await
    }
}

/// Returns whether the error is a missing queue.
fn is_missing_queue(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<AmqpError>().and_then(AmqpError::reply_code) == Some(404))
}
