//! The traces of first runs, from the trail.

use sqlx::PgConnection;

use crate::identity::IdentityPart;

/// The trace ids of the runs by which keys took effect, by position; what wrote none, or is not in the trail any more, is left out.
#[cfg_attr(not(feature = "otel"), allow(dead_code))]
pub(crate) async fn first_runs(
    connection: &mut PgConnection,
    consumer: &IdentityPart,
    keys: &[(&IdentityPart, &IdentityPart)],
) -> Result<Vec<(usize, String)>, sqlx::Error> {
    let tenants: Vec<&str> = keys.iter().map(|(tenant, _)| tenant.as_str()).collect();
    let names: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).collect();
    let rows = sqlx::query_file!("src/pg/first_runs.sql", consumer.as_str(), &tenants as _, &names as _)
        .fetch_all(connection)
        .await?;
    let found = rows.into_iter().filter_map(|row| {
        let position = usize::try_from(row.position).ok()?.checked_sub(1)?;
        Some((position, row.trace_id))
    });
    Ok(found.collect())
}
