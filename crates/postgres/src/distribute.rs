//! Spreads the tables over the nodes of a Citus cluster.

use sqlx::{Connection as _, PgConnection};

/// Where the tables of a cluster go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Number of parts of each table with tenants. It can't be changed without copying them.
    pub shards: u32,
    /// A table of the user's that is distributed by tenant already: a tenant's rows of both are on one node then. `None` for none.
    pub colocate_with: Option<String>,
}

/// The reason why a database's tables can't be spread.
#[derive(Debug, thiserror::Error)]
pub enum DistributeError {
    #[error("the database has no extension citus: `create extension citus`, on each node")]
    NoCitus,
    #[error(
        "Citus {0}: 13.1 is the first that brings rights on columns to the nodes, which Oncely's roles have"
    )]
    OldCitus(String),
    #[error("this server is no coordinator of a Citus cluster: connect to the coordinator")]
    NoCoordinator,
    #[error(
        "not all nodes of the cluster know its tables: see hasmetadata and metadatasynced in pg_dist_node"
    )]
    NotSynced,
    #[error("{0} is not a table that is distributed by a column of type text, collation \"C\"")]
    NotColocatable(String),
    #[error(transparent)]
    Postgres(#[from] sqlx::Error),
}

/// The first version of Citus that propagates GRANT on columns (its CHANGELOG, 13.1.0).
const MIN_VERSION: (u32, u32) = (13, 1);

/// Spreads the tables, on the coordinator. Tables that are spread already stay unchanged: it is called again after later migrations.
/// Copies existing rows, and writers wait meanwhile.
///
/// # Errors
/// If the server is no coordinator of a cluster, or a statement fails; then nothing is changed.
pub async fn distribute(
    connection: &mut PgConnection,
    distribution: &Distribution,
) -> Result<(), DistributeError> {
    let version: Option<String> =
        sqlx::query_scalar("select extversion from pg_extension where extname = 'citus'")
            .fetch_optional(&mut *connection)
            .await?;
    let version = version.ok_or(DistributeError::NoCitus)?;
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < MIN_VERSION {
        return Err(DistributeError::OldCitus(version));
    }
    let is_coordinator: bool =
        sqlx::query_scalar("select citus_is_coordinator()").fetch_one(&mut *connection).await?;
    if !is_coordinator {
        return Err(DistributeError::NoCoordinator);
    }
    let all_synced: Option<bool> = sqlx::query_scalar(
        "select bool_and(hasmetadata and metadatasynced) from pg_dist_node where isactive and noderole = 'primary'",
    )
    .fetch_one(&mut *connection)
    .await?;
    if all_synced != Some(true) {
        return Err(DistributeError::NotSynced);
    }
    let beside = distribution.colocate_with.as_deref();
    if let Some(table) = beside {
        let fits: Option<bool> = sqlx::query_scalar(
            "select a.atttypid = 'text'::regtype and l.collname = 'C'
             from pg_dist_partition as d
             join pg_attribute as a on a.attrelid = d.logicalrelid and a.attname = column_to_column_name(d.logicalrelid, d.partkey)
             join pg_collation as l on l.oid = a.attcollation
             where d.logicalrelid = to_regclass($1) and d.partmethod = 'h'",
        )
        .bind(table)
        .fetch_optional(&mut *connection)
        .await?;
        if fits != Some(true) {
            return Err(DistributeError::NotColocatable(table.to_owned()));
        }
    }
    let mut transaction = connection.begin().await?;
    sqlx::query("select set_config('oncely.shards', $1, true), set_config('oncely.colocate_with', $2, true)")
        .bind(distribution.shards.to_string())
        .bind(beside.unwrap_or_default())
        .fetch_one(&mut *transaction)
        .await?;
    sqlx::raw_sql(include_str!("distribute.sql")).execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(())
}
