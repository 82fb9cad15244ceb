//! The audit table: creates partitions ahead, seals closed spans, drops old partitions. The steps are independent: a failed one does not
//! prevent the others.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::clock;
use oncely_config::{AuditSettings, Config};
use oncely_failpoint::step;
use oncely_postgres::{self as pg, Session, is_outage, wait_for_answer};

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

/// Formats a hash as hexadecimal digits.
pub fn format_hash(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Creates the partitions for the time ahead, seals closed spans, and drops partitions past the retention.
///
/// # Errors
/// If the connection is lost. Statements that PostgreSQL refuses are among the failures.
pub async fn maintain_partitions(
    config: &Config,
    session: &mut Session,
    stop: impl Fn() -> bool,
) -> Result<PartitionReport, sqlx::Error> {
    let mut report = PartitionReport::default();
    create_partitions(config, session, &mut report).await?;
    seal_trail(config, session, &stop, &mut report).await?;
    drop_old_partitions(config, session, &mut report).await?;
    Ok(report)
}

/// Creates the partitions of the trail that are needed soon.
async fn create_partitions(
    config: &Config,
    session: &mut Session,
    report: &mut PartitionReport,
) -> Result<(), sqlx::Error> {
    let now = session.clock.now();
    let mut day = now;
    // One week more: the last partition may begin within the span.
    while day < now + config.audit.ahead + WEEK {
        step("gc.partitions.before");
        match wait_for_answer(
            config.postgres.client_timeout(),
            pg::create_partition(&mut session.connection, day),
        )
        .await
        {
            Ok(names) => report.made.extend(names),
            Err(error) => report.record_failure("a partition was not made", error)?,
        }
        step("gc.partitions.after");
        day += WEEK;
    }
    Ok(())
}

/// Seals the trail up to now, in steps.
async fn seal_trail(
    config: &Config,
    session: &mut Session,
    stop: &impl Fn() -> bool,
    report: &mut PartitionReport,
) -> Result<(), sqlx::Error> {
    while !stop() {
        step("gc.seal.before");
        let result =
            wait_for_answer(config.postgres.client_timeout(), pg::seal_audit(&mut session.connection)).await;
        step("gc.seal.after");
        match result {
            Ok(Some(seal)) => {
                report.seals += 1;
                report.sealed = Some((seal.until, format_hash(&seal.hash)));
            }
            Ok(None) => break,
            Err(error) => {
                report.record_failure("the trail was not sealed", error)?;
                break;
            }
        }
    }
    Ok(())
}

/// Drops partitions that are older than the retention and sealed.
async fn drop_old_partitions(
    config: &Config,
    session: &mut Session,
    report: &mut PartitionReport,
) -> Result<(), sqlx::Error> {
    let limit = config.postgres.client_timeout();
    let query = async {
        let clock = pg::observe_clock(&mut session.connection).await?;
        Ok((clock, pg::read_audit_floor(&mut session.connection).await?))
    };
    let (clock, floor) = match wait_for_answer(limit, query).await {
        Ok(values) => values,
        Err(error) => return report.record_failure("no partition was dropped", error),
    };
    if let Some(refusal) = clock::describe_clock_refusal(&clock) {
        report.notes.push(refusal);
        return Ok(());
    }
    let AuditSettings { retention, .. } = config.audit;
    if retention < floor {
        report.notes.push(format!(
            "audit.retention is {}, but the database keeps the trail for {} (oncely.cell.audit_floor), which only the owner of the \
             schema can lower",
            humantime::format_duration(retention),
            humantime::format_duration(floor)
        ));
    }
    let age = chrono::Duration::from_std(retention.max(floor)).ok();
    let Some(before) = age.and_then(|age| clock.at.checked_sub_signed(age)) else { return Ok(()) };
    loop {
        step("gc.drop.before");
        let result = wait_for_answer(limit, pg::drop_partition(&mut session.connection, before)).await;
        step("gc.drop.after");
        match result {
            Ok(Some(name)) => report.dropped.push(name),
            Ok(None) => return Ok(()),
            Err(error) => return report.record_failure("a partition was not dropped", error),
        }
    }
}

impl PartitionReport {
    /// Records an error as a failure with this description. An outage is returned instead.
    fn record_failure(&mut self, description: &str, error: sqlx::Error) -> Result<(), sqlx::Error> {
        if is_outage(&error) {
            return Err(error);
        }
        self.failures.push(format!("{description}: {error}"));
        Ok(())
    }
}
