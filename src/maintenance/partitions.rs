//! The audit table: its partitions made ahead, its closed spans sealed, what is old dropped. Each by itself: what fails does not
//! keep the rest from being done.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::clock;
use crate::config::{AuditSettings, Config};
use crate::failpoint::step;
use crate::pg::{self, Session, is_outage, within};

/// What was done to the trail, and what was not.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Partitions made.
    pub(crate) made: Vec<String>,
    /// Partitions dropped.
    pub(crate) dropped: Vec<String>,
    /// The seals made: how many, and the last one's end and hash.
    pub(crate) seals: u64,
    pub(crate) sealed: Option<(DateTime<Utc>, String)>,
    /// What could not be done now.
    pub(crate) failures: Vec<String>,
    /// What a person should know.
    pub(crate) notes: Vec<String>,
}

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// A hash as it is shown.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes the partitions for the time ahead, seals what is closed, and drops what is past the retention.
///
/// # Errors
/// Where the connection is gone; what PostgreSQL refuses is among the failures.
pub(crate) async fn keep_partitions(
    config: &Config,
    session: &mut Session,
    stop: impl Fn() -> bool,
) -> Result<Kept, sqlx::Error> {
    let mut kept = Kept::default();
    make(config, session, &mut kept).await?;
    seal(config, session, &stop, &mut kept).await?;
    drop_old(config, session, &mut kept).await?;
    Ok(kept)
}

async fn make(config: &Config, session: &mut Session, kept: &mut Kept) -> Result<(), sqlx::Error> {
    let now = session.clock.now();
    let mut day = now;
    // One week more: the last one may begin within the span.
    while day < now + config.audit.ahead + WEEK {
        step("gc.partitions.before");
        match within(config.postgres.client_timeout(), pg::make_partition(&mut session.connection, day)).await
        {
            Ok(made) => kept.made.extend(made),
            Err(error) => kept.failed("a partition was not made", error)?,
        }
        step("gc.partitions.after");
        day += WEEK;
    }
    Ok(())
}

async fn seal(
    config: &Config,
    session: &mut Session,
    stop: &impl Fn() -> bool,
    kept: &mut Kept,
) -> Result<(), sqlx::Error> {
    while !stop() {
        step("gc.seal.before");
        let sealed = within(config.postgres.client_timeout(), pg::seal_audit(&mut session.connection)).await;
        step("gc.seal.after");
        match sealed {
            Ok(Some(seal)) => {
                kept.seals += 1;
                kept.sealed = Some((seal.until, hexadecimal(&seal.hash)));
            }
            Ok(None) => break,
            Err(error) => {
                kept.failed("the trail was not sealed", error)?;
                break;
            }
        }
    }
    Ok(())
}

async fn drop_old(config: &Config, session: &mut Session, kept: &mut Kept) -> Result<(), sqlx::Error> {
    let limit = config.postgres.client_timeout();
    let asked = async {
        let clock = pg::observe_clock(&mut session.connection).await?;
        Ok((clock, pg::audit_floor(&mut session.connection).await?))
    };
    let (seen, floor) = match within(limit, asked).await {
        Ok(asked) => asked,
        Err(error) => return kept.failed("no partition was dropped", error),
    };
    if let Some(why) = clock::refusal(&seen) {
        kept.notes.push(why);
        return Ok(());
    }
    let AuditSettings { retention, .. } = config.audit;
    if retention < floor {
        kept.notes.push(format!(
            "audit.retention is {}, but the database keeps the trail for {} (oncely.cell.audit_floor), which only the owner of the \
             schema can lower",
            humantime::format_duration(retention),
            humantime::format_duration(floor)
        ));
    }
    let age = chrono::Duration::from_std(retention.max(floor)).ok();
    let Some(before) = age.and_then(|age| seen.at.checked_sub_signed(age)) else { return Ok(()) };
    loop {
        step("gc.drop.before");
        let dropped = within(limit, pg::drop_partition(&mut session.connection, before)).await;
        step("gc.drop.after");
        match dropped {
            Ok(Some(name)) => kept.dropped.push(name),
            Ok(None) => return Ok(()),
            Err(error) => return kept.failed("a partition was not dropped", error),
        }
    }
}

impl Kept {
    fn failed(&mut self, what: &str, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if is_outage(&error) {
            return Err(error);
        }
        self.failures.push(format!("{what}: {error}"));
        Ok(())
    }
}
