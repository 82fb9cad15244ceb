//! The independent judge: books that show every lost and every doubled effect. Knows nothing of Oncely's tables.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{PgConnection, Row as _};

/// What should have happened: each payment once.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    expected: BTreeSet<(String, String)>,
}

/// What did happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Payments with exactly one effect.
    pub effects: u64,
    /// Payments without an effect.
    pub lost: u64,
    /// Payments with more than one effect (or half of one).
    pub doubled: u64,
    /// Effects of payments that nobody sent.
    pub orphans: u64,
    /// Accounts whose balance is not the sum of their entries, and 1 more if all entries do not sum up to zero.
    pub wrong_balances: u64,
}

impl Ledger {
    /// Creates the books; needs Oncely's migrations before.
    pub async fn create(connection: &mut PgConnection) -> anyhow::Result<Self> {
        sqlx::raw_sql(include_str!("ledger.sql")).execute(connection).await?;
        Ok(Self::default())
    }

    /// A payment was sent, and confirmed by the broker.
    pub fn expect(&mut self, tenant: &str, payment: &str) {
        self.expected.insert((tenant.to_owned(), payment.to_owned()));
    }

    /// How many payments were sent.
    #[must_use]
    pub fn expected(&self) -> usize {
        self.expected.len()
    }

    /// How many payments have an effect so far; cheap.
    pub async fn progress(connection: &mut PgConnection) -> anyhow::Result<u64> {
        let row = sqlx::query("select count(*) / 2 from shop.entries").fetch_one(connection).await?;
        Ok(u64::try_from(row.get::<i64, _>(0))?)
    }

    /// Compares the books with what was sent.
    pub async fn judge(&self, connection: &mut PgConnection) -> anyhow::Result<Verdict> {
        let rows = sqlx::query("select tenant, payment, count(*) from shop.entries group by tenant, payment")
            .fetch_all(&mut *connection)
            .await?;
        let found: BTreeMap<(String, String), i64> =
            rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
        let mut verdict = Verdict::default();
        for payment in &self.expected {
            match found.get(payment) {
                None => verdict.lost += 1,
                Some(2) => verdict.effects += 1,
                Some(_) => verdict.doubled += 1,
            }
        }
        verdict.orphans =
            u64::try_from(found.keys().filter(|payment| !self.expected.contains(payment)).count())?;
        let row = sqlx::query(
            "select (
                select count(*)
                from (select tenant, account, sum(amount) as total from shop.entries group by tenant, account) as e
                full join shop.accounts as a using (tenant, account)
                where a.balance is distinct from e.total
            ) + (select (coalesce(sum(amount), 0) <> 0)::integer from shop.entries)",
        )
        .fetch_one(connection)
        .await?;
        verdict.wrong_balances = u64::try_from(row.get::<i64, _>(0))?;
        Ok(verdict)
    }
}
