//! The audit table's partitions: made ahead, dropped when old.

use crate::config::AuditSettings;
use crate::failpoint::step;
use crate::pg::{self, Session};

/// Makes the partitions for the time ahead and drops those past the retention; returns their names.
pub(crate) async fn keep_partitions(
    audit: &AuditSettings,
    session: &mut Session,
) -> Result<(Vec<String>, Vec<String>), sqlx::Error> {
    let now = session.clock.now();
    step("gc.partitions.before");
    let made = pg::make_partitions(&mut session.connection, now, now + audit.ahead).await?;
    step("gc.partitions.after");
    let dropped =
        match chrono::Duration::from_std(audit.retention).ok().and_then(|age| now.checked_sub_signed(age)) {
            Some(before) => pg::drop_partitions(&mut session.connection, before).await?,
            None => Vec::new(),
        };
    Ok((made, dropped))
}
