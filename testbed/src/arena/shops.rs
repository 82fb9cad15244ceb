//! How long messages wait that update hot rows.

use sqlx::PgConnection;

use super::Arena;
use crate::checker::{Key, SHOPS};

/// Those of them that are decided.
const DECIDED: &str = "select w.tenant, w.key
    from unnest($1::text[], $2::text[]) as w (tenant, key)
    join oncely.idempotency_keys as i on i.tenant = w.tenant and i.consumer = $3 and i.key = w.key
    where i.status in ('COMPLETED', 'FAILED')";

impl Arena {
    /// Looks for what waits too long.
    pub(super) async fn look_at_shops(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let mut waiting = self.publisher.confirmed_of(&SHOPS);
        waiting.retain(|(key, _)| !self.decided.contains(key));
        let of =
            |part: fn(&Key) -> &String| waiting.iter().map(|(key, _)| part(key).clone()).collect::<Vec<_>>();
        let decided: Vec<Key> = sqlx::query_as(DECIDED)
            .bind(of(|key| &key.0))
            .bind(of(|key| &key.1))
            .bind(&self.config.consumer)
            .fetch_all(connection)
            .await?;
        self.decided.extend(decided);
        waiting.retain(|(key, _)| !self.decided.contains(key));
        let since =
            |(key, since): (Key, std::time::Instant)| (key, since.saturating_duration_since(self.started));
        let waiting: Vec<_> = waiting.into_iter().map(since).collect();
        self.evidence.fairness.look_at_waiting(self.started.elapsed(), &waiting);
        Ok(())
    }
}
