//! Reads the traces of first runs from the audit trail.

use sqlx::PgConnection;

use super::tenant_groups::group_by_placement;
use oncely_core::identity::IdentityPart;

/// Reads the trace ids of the runs that completed these keys, by position; runs without a trace id, or no longer in the trail, are left
/// out.
pub async fn read_first_runs(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    keys: &[(&IdentityPart, &IdentityPart)],
) -> sqlx::Result<Vec<(usize, String)>> {
    let keys: Vec<_> = keys.iter().enumerate().collect();
    let mut found = Vec::new();
    for group in group_by_placement(connection, &keys, |(_, (tenant, _))| tenant.as_str()).await? {
        let tenants: Vec<&str> = group.iter().map(|(_, (tenant, _))| tenant.as_str()).collect();
        let names: Vec<&str> = group.iter().map(|(_, (_, key))| key.as_str()).collect();
        let rows = sqlx::query_file!("src/first_runs.sql", consumer.as_str(), &tenants as _, &names as _)
            .fetch_all(&mut *connection)
            .await?;
        found.extend(rows.into_iter().filter_map(|row| {
            let place = usize::try_from(row.position).ok()?.checked_sub(1)?;
            Some((group.get(place)?.0, row.trace_id))
        }));
    }
    Ok(found)
}
