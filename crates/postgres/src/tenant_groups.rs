//! Groups of tenants: one statement may lock the rows of one group.

use std::collections::HashMap;

use sqlx::PgConnection;

/// Splits rows by `oncely.tenant_groups` of their tenants. A statement that locks rows runs once for each group, with the group's tenants
/// in its predicate: an engine that spreads tables over nodes locks rows of one part of a table at a time. PostgreSQL has one group, and is
/// not asked about a single tenant. All sessions get groups in the same order, so that they lock in the same order.
pub(crate) async fn group_by_placement<'a, T>(
    connection: &mut PgConnection,
    rows: &'a [T],
    tenant: impl Fn(&'a T) -> &'a str,
) -> sqlx::Result<Vec<Vec<&'a T>>> {
    let mut tenants: Vec<&str> = rows.iter().map(&tenant).collect();
    tenants.sort_unstable();
    tenants.dedup();
    if tenants.len() < 2 {
        return Ok(if rows.is_empty() { Vec::new() } else { vec![rows.iter().collect()] });
    }
    let groups = sqlx::query_scalar!(
        r#"select g as "tenants!" from oncely.tenant_groups($1) as g"#,
        &tenants as &[&str]
    )
    .fetch_all(connection)
    .await?;
    let places: HashMap<&str, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(place, tenants)| tenants.iter().map(move |tenant| (tenant.as_str(), place)))
        .collect();
    let mut grouped = vec![Vec::new(); groups.len()];
    for row in rows {
        let place = places.get(tenant(row)).and_then(|&place| grouped.get_mut(place));
        place
            .ok_or_else(|| sqlx::Error::Protocol("oncely.tenant_groups left out a tenant".into()))?
            .push(row);
    }
    Ok(grouped)
}
