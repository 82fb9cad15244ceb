//! Erases a tenant: its keys, trail, letters, events and rights in PostgreSQL, its keys' tags in Redis, its copies in the dead-letter
//! queues. What waits in the user's own queues, and the effects of its messages, are the user's.
//!
//! In an order in which each step may be the last: whoever dies in between runs it again. First what would make new copies, then the
//! queues, while rows still say what is in them; keys after their tags, which nobody could compute without them.

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use crate::amqp::AmqpError;
use crate::config::Config;
use crate::identity::{Identity, IdentityPart};
use crate::letters::{Swept, sweep_tenant};
use crate::mirror::{Mirror, Tag, TagKey, tag_keys};
use crate::pg::{self, Session, TenantCounts, TenantTable};

/// Keys of one transaction.
const BATCH: i64 = 1_000;
/// A process that was seen within this lives, and says again what it says.
const SILENT: TimeDelta = TimeDelta::minutes(1);

/// What is to be erased, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Erasure<'a> {
    pub(crate) tenant: &'a str,
    /// Rows of the trail go; else they stay under a pseudonym.
    pub(crate) deletes_trail: bool,
    /// Keys go that are not past their retention.
    pub(crate) forgets_keys: bool,
    /// As the person calls himself; the database adds who it is.
    pub(crate) user: &'a str,
    pub(crate) note: Option<&'a str>,
}

/// What was erased. It names nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Receipt {
    /// Instead of the tenant's name, from now on. Random: nothing but this receipt leads from one to the other.
    pub(crate) pseudonym: String,
    pub(crate) erased_at: DateTime<Utc>,
    /// The database's user.
    pub(crate) login: String,
    pub(crate) keys: u64,
    /// Tags in Redis.
    pub(crate) mirror_entries: i64,
    pub(crate) mirror_records: u64,
    /// Rows of the trail.
    pub(crate) trail: i64,
    /// They were deleted; else they have the pseudonym.
    pub(crate) trail_deleted: bool,
    /// Spans of the trail that were not as they had been sealed before.
    pub(crate) broken_spans: u64,
    pub(crate) letters: u64,
    /// Copies in dead-letter queues.
    pub(crate) copies: u64,
    /// Copies there whose header names the tenant without a mark that shows it: they stay.
    pub(crate) unproven_copies: u64,
    /// Dead-letter queues that are gone.
    pub(crate) missing_queues: Vec<String>,
    pub(crate) events: u64,
    pub(crate) ordering_keys: u64,
    pub(crate) rights: u64,
    /// What an operator had said for it, and what was counted of it.
    pub(crate) limits: u64,
    /// Actions of people that named it.
    pub(crate) actions: u64,
    /// What there is of it afterwards.
    pub(crate) left: TenantCounts,
}

impl Receipt {
    /// Is nothing left, as far as Oncely keeps it?
    pub(crate) fn is_complete(&self) -> bool {
        self.left.total() == 0 && self.unproven_copies == 0
    }
}

impl Erasure<'_> {
    /// Erases.
    ///
    /// # Errors
    /// When a server does not answer, or the login is not the schema's owner: what was erased until then stays so.
    pub(crate) async fn run(&self, config: &Config, session: &mut Session) -> anyhow::Result<Receipt> {
        if self.forgets_keys && config.mirror.is_none() && pg::has_mirror(&mut session.connection).await? {
            anyhow::bail!(
                "nothing was changed: relays of this database have a mirror, and this configuration has none; without [mirror] the tags of the \
                 keys that are forgotten would stay in Redis, and later messages with these keys be taken for duplicates. Run it with the \
                 relays' configuration"
            );
        }
        let pseudonym = format!("erased-{}", Uuid::new_v4());
        let mut receipt = Receipt { pseudonym, trail_deleted: self.deletes_trail, ..Receipt::default() };
        pg::take_time(&mut session.connection).await?;
        // Before the first row goes: whatever ends this, it stands there that somebody began.
        self.record(session, "begin erase", &receipt).await?;
        self.letters(config, session, &mut receipt).await?;
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
        self.keys(config, session, &mut receipt).await?;
        self.trail(session, &mut receipt).await?;
        let connection = &mut session.connection;
        receipt.actions = pg::erase_actions(connection, self.tenant, &receipt.pseudonym).await?;
        let now = session.clock.now();
        pg::erase_silent_processes(connection, self.tenant, now - SILENT).await?;
        receipt.left = pg::tenant_counts(connection, self.tenant, now).await?;
        receipt.login = pg::login_powers(connection).await?.login;
        receipt.erased_at = now;
        self.record(session, "erase", &receipt).await?;
        Ok(receipt)
    }

    /// Letters are given up, then their copies go.
    async fn letters(
        &self,
        config: &Config,
        session: &mut Session,
        receipt: &mut Receipt,
    ) -> anyhow::Result<()> {
        let now = session.clock.now();
        pg::close_letters(&mut session.connection, self.tenant, now).await?;
        let working = config.consumers.iter().filter(|consumer| !consumer.observes());
        let configured: Vec<String> = working.flat_map(|consumer| consumer.queues.clone()).collect();
        let mut queues = pg::tenant_queues(&mut session.connection, self.tenant).await?;
        queues.extend(configured);
        queues.sort();
        queues.dedup();
        for queue in queues {
            match sweep_tenant(config, session, &queue, self.tenant).await {
                Ok(Swept { dropped, unproven, .. }) => {
                    receipt.copies += dropped;
                    receipt.unproven_copies += unproven;
                }
                Err(error) if is_missing(&error) => receipt.missing_queues.push(queue),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Keys go, each after its tag.
    async fn keys(
        &self,
        config: &Config,
        session: &mut Session,
        receipt: &mut Receipt,
    ) -> anyhow::Result<()> {
        let mirror = match &config.mirror {
            Some(settings) => {
                let (now, before) = tag_keys(config, &mut session.connection).await?;
                // Entries that were made with another key may be there still.
                Some((Mirror::new(settings)?, [vec![now], before].concat()))
            }
            None => None,
        };
        let tenant = IdentityPart::new(self.tenant.as_bytes())?;
        loop {
            let now = session.clock.now();
            let mut transaction = pg::past_requeues(&mut session.connection).await?;
            if self.forgets_keys {
                pg::hold_rebuilds(&mut transaction).await?;
            }
            let gone = pg::erase_keys(&mut transaction, self.tenant, BATCH, self.forgets_keys, now).await?;
            // A key that is not past its retention may have a record that waits for a relay, or that one has taken. Behind the keys, so that
            // all records of theirs are seen; before their tags, so that none comes after.
            if self.forgets_keys && !gone.is_empty() {
                receipt.mirror_records += pg::erase_pending_tags(&mut transaction, self.tenant).await?;
            }
            if let Some((mirror, keys)) = &mirror {
                let mut tags: Vec<Tag> = Vec::with_capacity(gone.len());
                for one in &gone {
                    let identity = Identity {
                        tenant: tenant.clone(),
                        consumer: IdentityPart::new(one.consumer.as_bytes())?,
                        key: IdentityPart::new(one.key.as_bytes())?,
                    };
                    let tag =
                        |key: &TagKey| key.tag(&session.cell.epoch, &identity, one.fingerprint.as_ref());
                    tags.extend(keys.iter().map(tag));
                }
                receipt.mirror_entries +=
                    mirror.remove(&tags, now).await.context("taking keys out of the mirror")?;
            }
            transaction.commit().await?;
            if gone.is_empty() {
                return Ok(());
            }
            receipt.keys += u64::try_from(gone.len())?;
        }
    }

    /// The trail, one sealed span after another.
    async fn trail(&self, session: &mut Session, receipt: &mut Receipt) -> anyhow::Result<()> {
        let salt = [*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()].concat();
        let pseudonym = (!self.deletes_trail).then_some(receipt.pseudonym.as_str());
        let mut place = 0;
        loop {
            let span = pg::erase_trail(&mut session.connection, self.tenant, pseudonym, &salt, place).await?;
            receipt.trail += span.rows;
            receipt.broken_spans += u64::from(!span.was_whole);
            let Some(next) = span.place else { return Ok(()) };
            place = next;
        }
    }

    /// Under the pseudonym. A note may say the name.
    async fn record(&self, session: &mut Session, verb: &str, receipt: &Receipt) -> Result<(), sqlx::Error> {
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

/// Is it that a queue is not there?
fn is_missing(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<AmqpError>().and_then(AmqpError::reply_code) == Some(404))
}
