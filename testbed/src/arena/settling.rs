//! What an operator does with messages that were given up because nobody knows what they have called: looks into the provider's books, and says
//! that the call did not happen, or lets it be repeated.

use std::time::{Duration, Instant};

use super::Arena;
use super::charging::{Charging, LETTERS};
use super::doors::Doors;
use super::gateways::Gateways;
use crate::checker::{Key, LEASED, PROXIED, Side};

/// Longer than any process stands still.
const PATIENCE: Duration = Duration::from_secs(15);
/// Keys of one errand.
const KEYS: i64 = 6;
/// Keys that were given up, and their steps that may have happened. Not those of the last seconds: a call may be on its way.
const UNKNOWN: &str = "select tenant, key,
        array(select s.key from jsonb_each(steps) as s where s.value ->> 'state' = 'started')
    from oncely.idempotency_keys
    where consumer = $1 and status = 'FAILED' and reason = 'outcome_unknown' and completed_at < now() - interval '5 seconds'
    order by completed_at limit $2";

impl Arena {
    /// Settles those whose calls did not happen, and repeats the others. Then each of them runs again.
    pub(super) async fn settle(&mut self) -> anyhow::Result<()> {
        // A process that stands still may make its call later.
        let since = Instant::now();
        while self.stands_still() && since.elapsed() < PATIENCE {
            self.supervise()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let Some(charging) = self.charging.as_ref() else { return Ok(()) };
        let calls = charging.calls();
        let file = self.folder().join("charging.toml").display().to_string();
        let mut connection = self.connect().await?;
        let keys: Vec<(String, String, Vec<String>)> =
            sqlx::query_as(UNKNOWN).bind(LEASED).bind(KEYS).fetch_all(&mut connection).await?;
        let letters: Vec<Key> = sqlx::query_as(LETTERS).bind(LEASED).fetch_all(&mut connection).await?;
        for (tenant, key, steps) in keys {
            let of: Key = (tenant.clone(), key.clone());
            // An order of a client over HTTP has no letter that may be requeued, and the client asks no more.
            if !letters.contains(&of) {
                continue;
            }
            let in_doubt: Vec<Side> = steps.iter().filter_map(|step| Side::by_name(step)).collect();
            let happened =
                calls.iter().any(|call| call.key == of && in_doubt.contains(&call.side) && call.has_effect());
            let leases = &mut self.evidence.leases;
            *leases.leaves.entry(of.clone()).or_insert(0) += 1;
            let named = ["--config", &file, "failed", "requeue", "--consumer", LEASED, "--tenant", &tenant];
            let mut requeue: Vec<&str> = named.into_iter().chain(["--key", &key, "--yes"]).collect();
            if happened {
                requeue.push("--repeat-unknown");
            } else {
                leases.settled.insert(of);
                let settle = ["--config", &file, "keys", "settle", &key, "--tenant", &tenant];
                let no = ["--consumer", LEASED, "--took-effect", "no", "--yes"];
                let settle: Vec<&str> = settle.into_iter().chain(no).collect();
                self.run_operator_verb(&settle, None).await?;
            }
            self.run_operator_verb(&requeue, None).await?;
        }
        self.settle_requests().await
    }

    /// The same of requests that went through a gateway: their clients ask again when it is known.
    async fn settle_requests(&mut self) -> anyhow::Result<()> {
        let Some(gateways) = self.gateways.as_ref() else { return Ok(()) };
        let calls = gateways.calls();
        let keys: Vec<(String, String, Vec<String>)> =
            sqlx::query_as(UNKNOWN).bind(PROXIED).bind(KEYS).fetch_all(&mut self.connect().await?).await?;
        for (tenant, key, _) in keys {
            let of: Key = (tenant.clone(), key.clone());
            let happened = calls.iter().any(|call| call.key == of && call.has_effect());
            if !happened {
                *self.evidence.proxied.refusals.entry(of.clone()).or_insert(0) += 1;
            }
            let settle = ["keys", "settle", &key, "--tenant", &tenant, "--consumer", PROXIED];
            let said = ["--took-effect", if happened { "yes" } else { "no" }, "--yes"];
            let settle: Vec<&str> = settle.into_iter().chain(said).collect();
            self.run_operator_verb(&settle, None).await?;
            self.request_again(&of);
        }
        Ok(())
    }

    fn stands_still(&self) -> bool {
        self.doors.as_ref().is_some_and(Doors::stands_still)
            || self.gateways.as_ref().is_some_and(Gateways::stands_still)
            || self.charging.as_ref().is_some_and(Charging::stands_still)
    }
}
