//! The baseline's work on hot rows: the statements of `xtask/src/bench/handlers.sql`, one transaction per message.

use clap::ValueEnum;
use serde_json::json;
use sqlx::PgConnection;

use crate::payment::Payment;

/// What a message does beside its business row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hot {
    /// Takes one from one of 15 rows of stock; a negative amount is out of stock.
    Stock,
    /// Adds one to the same row as every other message.
    OneRow,
    /// Moves one between two of 100 rows, in the order in which the message names them.
    TwoRows,
    /// Writes an event with one of 15 ordering keys.
    Events,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sold {
    Done,
    /// Out of stock: an answer, and no effect.
    Refused,
    /// The transaction lost a deadlock and has to be rolled back.
    Deadlock,
}

impl Hot {
    pub(crate) async fn sell(
        self,
        connection: &mut PgConnection,
        payment: &Payment,
        key: &str,
    ) -> anyhow::Result<Sold> {
        let amount = i32::try_from(payment.amount).unwrap_or_default();
        let done = match self {
            Self::Stock => add(connection, payment.customer % 15, payment.amount > 0).await,
            Self::OneRow => add(connection, 0, true).await,
            Self::TwoRows => {
                let (from, to) = (payment.customer % 100, amount % 100);
                match add(connection, from, true).await {
                    Ok(_) => add(connection, if to == from { (to + 1) % 100 } else { to }, true).await,
                    failed => failed,
                }
            }
            Self::Events => {
                let emitted = sqlx::query(
                    "with numbered as (update ordering set last = last + 1 where key = $1 returning key, last)
                     insert into events (ordering_key, number, event) select key, last, $2 from numbered",
                )
                .bind(payment.customer % 15)
                .bind(json!({ "event": "captured", "key": key, "amount": payment.amount }))
                .execute(connection)
                .await;
                emitted.map(|done| done.rows_affected())
            }
        };
        match done {
            Ok(0) => Ok(Sold::Refused),
            Ok(_) => Ok(Sold::Done),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("40P01") => {
                Ok(Sold::Deadlock)
            }
            Err(error) => Err(error.into()),
        }
    }
}

async fn add(connection: &mut PgConnection, sku: i32, in_stock: bool) -> Result<u64, sqlx::Error> {
    let updated = sqlx::query("update bench.stock set sold = sold + 1 where sku = $1 and $2")
        .bind(sku)
        .bind(in_stock)
        .execute(connection)
        .await?;
    Ok(updated.rows_affected())
}
