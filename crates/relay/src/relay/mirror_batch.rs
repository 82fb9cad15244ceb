//! One batch of the mirror queue: takes, writes to the mirror, deletes.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};

use oncely_failpoint::step;
use oncely_mirror::{Mirror, MirrorError, Tag, TagKey};
use oncely_postgres::{self as pg, MirrorContent, MirrorRecord, Session, Unit};

/// Results of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MirrorReport {
    /// Records taken and deleted.
    pub(crate) records: usize,
    /// Tags written to the mirror.
    pub(crate) tags: usize,
    /// Time at which the oldest record was written.
    pub(crate) oldest: Option<DateTime<Utc>>,
    /// Time at which the batch was taken, by the database's clock.
    pub(crate) at: DateTime<Utc>,
}

impl MirrorReport {
    /// Adds the results of a later batch.
    pub(crate) fn add(&mut self, later: Self) {
        self.records += later.records;
        self.tags += later.tags;
        self.oldest = [self.oldest, later.oldest].into_iter().flatten().min();
        if later.records > 0 {
            self.at = later.at;
        }
    }
}

/// Reason why a batch stays in the mirror queue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MirrorBatchError {
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] sqlx::Error),
    #[error("{0}")]
    Mirror(#[from] MirrorError),
    #[error("deleted {deleted} of {taken} mirror records")]
    Deleted { deleted: u64, taken: usize },
}

/// Takes a batch of a unit, writes it to the mirror, deletes it. The rows stay locked meanwhile, so that two relays share the work; a crash
/// between the write and the COMMIT writes the same tags again, which changes nothing. Without a mirror the records are only deleted: kept,
/// they would hold back the garbage collection for ever. If the mirror takes nothing, returns its error (otherwise `None`) beside the
/// records that were deleted anyway, because their entries would be over.
pub(crate) async fn mirror_batch(
    session: &mut Session,
    unit: &Unit,
    witness: Option<&mut PgConnection>,
    mirror: Option<(&Mirror, &TagKey)>,
    limit: u32,
) -> Result<(MirrorReport, Option<MirrorError>), MirrorBatchError> {
    let now = session.clock.now();
    // Of this session, so of the epoch at which a record was read.
    let epoch = session.cell.epoch.clone();
    let mut transaction = session.connection.begin().await?;
    step("relay.take.before");
    let ttl = mirror.map(|(mirror, _)| mirror.ttl()).unwrap_or_default();
    let records = pg::take_mirror(&mut transaction, unit, i64::from(limit), ttl).await?;
    step("relay.take.after");
    if records.is_empty() {
        transaction.rollback().await?;
        return Ok((MirrorReport::default(), None));
    }
    let mut written = 0;
    let mut failure = None;
    // Records that are written, or whose entries would be over.
    let mut deletable = records;
    if let Some((mirror, tag_key)) = mirror {
        let (due, expired): (Vec<_>, Vec<_>) =
            deletable.into_iter().partition(|record| is_due(record, mirror, now));
        let tags: Vec<Tag> = due.iter().flat_map(|record| make_tags(record, tag_key, &epoch)).collect();
        if !tags.is_empty() {
            // Visible is not enough if a standby may take over: an entry must not outlive its row.
            if let Some(witness) = witness {
                pg::wait_for_standby(witness).await?;
            }
            step("relay.mirror.before");
            failure = mirror.write(tag_key, &tags, now).await.err();
            step("relay.mirror.after");
        }
        written = tags.len();
        deletable = expired;
        // If the mirror takes nothing, a record is not kept for longer than its entry would have lived: it would hold back the keys of that
        // time.
        if failure.is_none() {
            deletable.extend(due);
        }
    }
    if deletable.is_empty()
        && let Some(error) = failure
    {
        return Err(error.into());
    }
    step("relay.delete.before");
    let deleted = pg::delete_mirrored(&mut transaction, &deletable).await?;
    step("relay.delete.after");
    if usize::try_from(deleted) != Ok(deletable.len()) {
        return Err(MirrorBatchError::Deleted { deleted, taken: deletable.len() });
    }
    step("relay.commit.before");
    transaction.commit().await?;
    step("relay.commit.after");
    let report = MirrorReport {
        records: deletable.len(),
        tags: if failure.is_none() { written } else { 0 },
        oldest: deletable.iter().map(|record| record.created_at).min(),
        at: now,
    };
    Ok((report, failure))
}

/// Returns whether an entry may be made of a record. It must not outlive its key: if the rest of the key's life is shorter than an entry's,
/// none is made. Nor is one made that would be over by now, had it been written when the record was.
fn is_due(record: &MirrorRecord, mirror: &Mirror, now: DateTime<Utc>) -> bool {
    let age = now.signed_duration_since(record.created_at).to_std().unwrap_or_default();
    record.expires_at >= mirror.expires_at(now) && age < mirror.ttl()
}

/// Makes the tags of a record. An unreadable record has none, which is logged.
fn make_tags(record: &MirrorRecord, tag_key: &TagKey, epoch: &str) -> Vec<Tag> {
    match &record.content {
        MirrorContent::Tags(tags) => {
            tags.as_chunks::<{ Tag::BYTES }>().0.iter().map(|bytes| Tag(*bytes)).collect()
        }
        MirrorContent::Key(identity, print) => vec![tag_key.tag(epoch, identity, print.as_ref())],
        // Its key stays known to PostgreSQL.
        MirrorContent::Unreadable => {
            tracing::error!(id = %record.id, "dropped an unreadable mirror record");
            Vec::new()
        }
    }
}
