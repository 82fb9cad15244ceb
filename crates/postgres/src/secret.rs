//! The database's secrets, by purpose. The functions that return them refuse unauthorised logins.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;

use super::consumers::to_interval;
use oncely_core::signing::{SigningSecrets, StoredSecret, StoredSecrets};

/// The secrets of a worker, as stored in the database at one time.
pub struct Secrets {
    /// The time before the query.
    pub read_at: Instant,
    /// The secret of current mirror tags.
    pub mirror: Vec<u8>,
    pub signing: SigningSecrets,
}

/// A key without its secret.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SecretRow {
    pub purpose: String,
    pub id: String,
    /// `signing`, `accepted`, `pending` or `over`.
    pub state: String,
    pub created_at: DateTime<Utc>,
    /// `None` if another key replaced it before.
    pub signs_from: Option<DateTime<Utc>>,
    pub accepted_until: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, Serialize)]
pub struct RotatedKey {
    pub id: String,
    pub signs_from: DateTime<Utc>,
    /// Until when the previous keys are accepted.
    pub accepted_until: DateTime<Utc>,
}

/// Reads the secrets of the mirror's tags: the first makes tags now, entries of the others may still exist. For the roles
/// `oncely_worker`, `oncely_relay`, `oncely_operator`.
///
/// # Errors
/// If the query fails, or no secret exists.
pub async fn read_mirror_keys(connection: &mut PgConnection) -> sqlx::Result<Vec<Vec<u8>>> {
    let found = sqlx::query_scalar!(r#"select secret as "secret!" from oncely.mirror_keys()"#)
        .fetch_all(connection)
        .await?;
    if found.is_empty() { Err(sqlx::Error::RowNotFound) } else { Ok(found) }
}

/// Reads the secrets of signed identities and letter marks. For the roles `oncely_worker`, `oncely_operator`.
///
/// # Errors
/// If the query fails, or a purpose has no secret.
pub async fn read_signing_secrets(connection: &mut PgConnection) -> sqlx::Result<SigningSecrets> {
    let rows = sqlx::query!(
        r#"select purpose as "purpose!", id as "id!", secret as "secret!" from oncely.signing_keys()"#
    )
    .fetch_all(connection)
    .await?;
    let mut secrets_by_purpose = [("identity", None::<StoredSecrets>), ("letter", None)];
    for row in rows {
        let stored = StoredSecret { id: row.id, secret: row.secret };
        let Some((_, found)) = secrets_by_purpose.iter_mut().find(|(purpose, _)| *purpose == row.purpose)
        else {
            continue;
        };
        match found {
            Some(found) => found.accepted.push(stored),
            None => *found = Some(StoredSecrets { signing: stored, accepted: Vec::new() }),
        }
    }
    match secrets_by_purpose {
        [(_, Some(identity)), (_, Some(letter))] => Ok(SigningSecrets { identity, letter }),
        _ => Err(sqlx::Error::RowNotFound),
    }
}

/// Reads all secrets of a worker.
///
/// # Errors
/// If a query fails, or a purpose has no secret.
pub async fn read_secrets(connection: &mut PgConnection) -> sqlx::Result<Secrets> {
    let read_at = Instant::now();
    let mirror = read_mirror_keys(connection).await?.swap_remove(0);
    Ok(Secrets { read_at, mirror, signing: read_signing_secrets(connection).await? })
}

/// Lists the keys without their secrets, by purpose, newest first.
pub async fn list_secrets(connection: &mut PgConnection) -> sqlx::Result<Vec<SecretRow>> {
    sqlx::query_as!(
        SecretRow,
        r#"select s.purpose, s.id, oncely.bounded(s.created_at) as "created_at!", s.signs_from, s.accepted_until,
            case
                when s.accepted_until <= n.at then 'over'
                when s.signs_from > n.at then 'pending'
                when s.signs_from = max(s.signs_from) filter (where s.signs_from <= n.at)
                    over (partition by s.purpose) then 'signing'
                else 'accepted'
            end as "state!"
        from oncely.secrets as s, (select clock_timestamp() as at) as n
        order by s.purpose, s.created_at desc, s.id"#
    )
    .fetch_all(connection)
    .await
}

/// Deletes expired keys, by the plausible time of the clock.
pub async fn forget_secrets(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("select oncely.forget_secrets()::text").fetch_one(connection).await?;
    Ok(())
}

/// Creates a new key of a purpose; recorded in the same transaction.
///
/// # Errors
/// If a time is out of bounds (`ONC11`).
pub async fn rotate_secret(
    connection: &mut PgConnection,
    purpose: &str,
    signs_in: Duration,
    accepted_for: Option<Duration>,
    note: Option<&str>,
    user: &str,
) -> sqlx::Result<RotatedKey> {
    let accepted_for: Option<PgInterval> = accepted_for.map(to_interval);
    sqlx::query_as!(
        RotatedKey,
        r#"select id as "id!", signs_from as "signs_from!", accepted_until as "accepted_until!"
        from oncely.rotate_secret($1, $2, $3, $4, $5)"#,
        purpose,
        to_interval(signs_in),
        accepted_for,
        note,
        user
    )
    .fetch_one(connection)
    .await
}
