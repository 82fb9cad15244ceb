//! The audit table: creates partitions ahead, seals closed spans, drops old partitions. The steps are independent: a failed one does not
//! prevent the others.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::clock;
use oncely_config::{AuditSettings, Config};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, Session, is_outage, within};

/// The changes made to the audit trail, and the failures.
#[derive(Debug, Default)]
pub struct PartitionReport {
    pub made: Vec<String>,
    pub dropped: Vec<String>,
    /// The number of seals made; below, the end and hash of the last one.
    pub seals: u64,
    pub(crate) sealed: Option<(DateTime<Utc>, String)>,
    pub failures: Vec<String>,
    /// Warnings for the operator.
    pub notes: Vec<String>,
}

const WEEK: Duration = Duration::from_secs(7 * 86_400);

/// Returns a hash as shown to operators.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates the partitions for the time ahead, seals closed spans, and drops partitions past the retention.
///
/// # Errors
/// If the connection is lost. Statements that PostgreSQL refuses are among the failures.
pub async fn keep_partitions(
    config: &Config,
    session: &mut Session,
    stop: impl Fn() -> bool,
) -> Result<PartitionReport, sqlx::Error> {
    let mut kept = PartitionReport::default();
    make(config, session, &mut kept).await?;
    seal(config, session, &stop, &mut kept).await?;
    drop_old(config, session, &mut kept).await?;
    Ok(kept)
}

async fn make(config: &Config, session: &mut Session, kept: &mut PartitionReport) -> Result<(), sqlx::Error> {
    let now = session.clock.now();
    let mut day = now;
    // One week more: the last partition may begin within the span.
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
    kept: &mut PartitionReport,
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

async fn drop_old(
    config: &Config,
    session: &mut Session,
    kept: &mut PartitionReport,
) -> Result<(), sqlx::Error> {
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

impl PartitionReport {
    fn failed(&mut self, what: &str, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if is_outage(&error) {
            return Err(error);
        }
        self.failures.push(format!("{what}: {error}"));
        Ok(())
    }
}
