//! Fast and wrong is worth nothing: what must hold after each run.

use sqlx::{PgConnection, Row as _};

use super::job::Consumer;
use super::site::Site;

/// Fails unless each message has taken effect once. `effects` are due in all.
pub(crate) async fn verify(
    site: &Site<'_>,
    connection: &mut PgConnection,
    effects: u64,
) -> anyhow::Result<()> {
    let mut facts = vec![
        ("effects", "select count(*) from bench.payments", effects),
        (
            "distinct keys of effects",
            "select count(*) from (select distinct tenant, key from bench.payments) as p",
            effects,
        ),
    ];
    let (poisoned, refused) = (site.job.poisoned(), site.job.refused());
    match &site.job.consumer {
        Consumer::Naive(_) | Consumer::NaiveHot(_) => facts.extend([
            (
                "completed keys",
                "select count(*) from idempotency_keys where status = 'COMPLETED'",
                effects + refused,
            ),
            ("keys", "select count(*) from idempotency_keys", effects + refused),
            ("audit rows", "select count(*) from audit", effects + refused),
            ("outbox rows", "select count(*) from outbox", effects + refused),
        ]),
        Consumer::Ours(_) | Consumer::Raw => {
            let before = site.prefilled;
            facts.extend([
                (
                    "completed keys",
                    "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'",
                    effects + refused + before,
                ),
                ("keys", "select count(*) from oncely.idempotency_keys", effects + refused + before + poisoned),
                ("attempts after the first", "select count(*) from oncely.audit where attempt > 1 or outcome = 'retried'", 0),
                (
                    "audit rows of refused messages",
                    "select count(*) from oncely.audit where outcome = 'refused'",
                    refused,
                ),
                (
                    "effects without a completed key",
                    "select count(*) from bench.payments as p where not exists (select from oncely.idempotency_keys as k
                     where k.tenant = p.tenant and k.consumer = 'payments' and k.key = p.key and k.status = 'COMPLETED')",
                    0,
                ),
                (
                    "audit rows of effects",
                    "select count(*) from oncely.processed_keys where queue <> 'prefilled'",
                    effects,
                ),
                (
                    "audit rows of rejected messages",
                    "select count(*) from oncely.audit where outcome = 'dead_lettered'",
                    poisoned,
                ),
            ]);
            if matches!(&site.job.consumer, Consumer::Ours(ours) if ours.relay) {
                facts.push(("mirror records", "select count(*) from oncely.mirror_queue", 0));
            }
        }
        // It has no effects; see published.rs.
        Consumer::Nobody(_) | Consumer::Bare => facts.clear(),
    }
    for (what, query, due) in facts {
        let found: i64 = sqlx::query(query).fetch_one(&mut *connection).await?.get(0);
        anyhow::ensure!(u64::try_from(found) == Ok(due), "{what}: {found} instead of {due}");
    }
    if poisoned > 0 {
        let dead = u64::from(site.broker().await?.ready(&format!("{}.dead", site.queue)).await?);
        anyhow::ensure!(dead == poisoned, "dead letters: {dead} instead of {poisoned}");
    }
    Ok(())
}
