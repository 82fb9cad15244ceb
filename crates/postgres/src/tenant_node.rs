//! The nodes that keep tenants' rows, where an engine spreads tables over nodes.

use sqlx::PgConnection;

/// A tenant, and the node that keeps its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantNode {
    /// The tenant.
    pub tenant: String,
    /// The node's number, which stays when its address changes.
    pub node: i32,
    /// The host by which nodes reach it.
    pub host: String,
    /// The port by which nodes reach it.
    pub port: u16,
}

/// Finds the nodes of tenants. Any node knows them. A tenant is left out if its node is unknown; PostgreSQL, which has no nodes, leaves out
/// all.
///
/// # Errors
/// If the statement fails.
pub async fn find_tenant_nodes(
    connection: &mut PgConnection,
    tenants: &[&str],
) -> sqlx::Result<Vec<TenantNode>> {
    let rows = sqlx::query!(
        r#"select n.tenant as "tenant!", n.node as "node!", n.host as "host!", n.port as "port!"
        from oncely.tenant_nodes($1) as n"#,
        tenants as &[&str]
    )
    .fetch_all(connection)
    .await?;
    let nodes = rows.into_iter().filter_map(|row| {
        let port = u16::try_from(row.port).ok()?;
        Some(TenantNode { tenant: row.tenant, node: row.node, host: row.host, port })
    });
    Ok(nodes.collect())
}

/// Returns whether the tables of the schema are spread over nodes.
///
/// # Errors
/// If the statement fails.
pub async fn is_spread(connection: &mut PgConnection) -> sqlx::Result<bool> {
    Ok(!find_tenant_nodes(connection, &[""]).await?.is_empty())
}
