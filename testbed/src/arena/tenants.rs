//! Tenants of their own schema, one of which is missing for a while.

use sqlx::AssertSqlSafe;

use super::Arena;
use crate::checker::FRAGILE;

/// A tenant whose messages can't succeed for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which of [`FRAGILE`], counted round.
    pub tenant: usize,
    /// What is missing, counted round: the schema, the table, the grant.
    pub what: usize,
}

impl Missing {
    fn tenant(self) -> &'static str {
        FRAGILE[self.tenant % FRAGILE.len()]
    }

    /// For reports.
    #[must_use]
    pub fn name(self) -> String {
        format!("{} without its {}", self.tenant(), ["schema", "table", "grant"][self.what % 3])
    }
}

impl Arena {
    /// Takes a tenant's schema (or table, or grant) away.
    pub async fn take_away(&mut self, missing: Missing) -> anyhow::Result<()> {
        let tenant = missing.tenant();
        self.run_sql(match missing.what % 3 {
            0 => format!("alter schema {tenant} rename to {tenant}_away"),
            1 => format!("alter table {tenant}.books rename to books_away"),
            _ => format!("revoke insert on {tenant}.books from oncely_worker"),
        })
        .await?;
        let now = self.moment();
        self.evidence.meanwhile.missing.push((tenant.to_owned(), now, f64::INFINITY));
        Ok(())
    }

    /// Gives it back, and has what was given up meanwhile requeued.
    pub async fn give_back(&mut self, missing: Missing) -> anyhow::Result<()> {
        let tenant = missing.tenant();
        self.run_sql(match missing.what % 3 {
            0 => format!("alter schema {tenant}_away rename to {tenant}"),
            1 => format!("alter table {tenant}.books_away rename to books"),
            _ => format!("grant insert on {tenant}.books to oncely_worker"),
        })
        .await?;
        let now = self.moment();
        for (_, _, until) in self.evidence.meanwhile.missing.iter_mut().filter(|(name, _, _)| *name == tenant)
        {
            *until = until.min(now);
        }
        Ok(())
    }

    pub(super) async fn run_sql(&self, statement: String) -> anyhow::Result<()> {
        let mut connection = self.connect().await?;
        // Names and numbers of our own.
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
        Ok(())
    }
}
