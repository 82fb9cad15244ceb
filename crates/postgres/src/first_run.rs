//! Reads the traces of first runs from the audit trail.

use sqlx::PgConnection;

use oncely_core::identity::IdentityPart;

/// Reads the trace ids of the runs that completed these keys, by position; runs without a trace id, or no longer in the trail, are left
/// out.
pub async fn read_first_runs(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    keys: &[(&IdentityPart, &IdentityPart)],
) -> sqlx::Result<Vec<(usize, String)>> {
    let tenants: Vec<&str> = keys.iter().map(|(tenant, _)| tenant.as_str()).collect();
    let names: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
    let rows = sqlx::query_file!("src/first_runs.sql", consumer.as_str(), &tenants as _, &names as _)
        .fetch_all(connection)
        .await?;
    let found = rows.into_iter().filter_map(|row| {
        let position = usize::try_from(row.position).ok()?.checked_sub(1)?;
        Some((position, row.trace_id))
    });
    Ok(found.collect())
}
