//! A tenant that is erased with all that is remembered of it, and comes back with the keys that it had.

use std::time::{Duration, Instant};

use super::Arena;
use crate::checker::{Act, Class, Intent, RETURNING};

/// Messages of it, each time.
const KEYS: usize = 20;
/// Longest wait for their effects.
const PATIENCE: Duration = Duration::from_secs(60);
/// Its effects, and events that wait: they would go with it.
const EFFECTS: &str = "select (select count(*) from judge.log where tenant = $1),
    (select count(*) from oncely.events where tenant = $1)";

impl Arena {
    /// Erases the tenant when all that it has sent has taken effect. What it sends then takes effect once more, under the same keys.
    pub(super) async fn erase_returning(&mut self, deletes_trail: bool) -> anyhow::Result<()> {
        if self.returns == 0 {
            self.publish_returning();
        }
        if !self.wait_until_returned().await? {
            return Ok(());
        }
        let trail = if deletes_trail { "delete" } else { "pseudonym" };
        let erase = ["tenant", "erase", RETURNING, "--forget-keys", "--trail", trail, "--yes"];
        let output = self.oncely_command(&erase).output().await?;
        if output.status.success() {
            self.publish_returning();
        } else {
            let text = String::from_utf8_lossy(&output.stderr);
            self.exits.push(format!("oncely {}: {} {text}", erase.join(" "), output.status));
        }
        Ok(())
    }

    fn publish_returning(&mut self) {
        let version = self.returns;
        self.returns += 1;
        let message = |number| Intent::new(RETURNING, &format!("key-{number}"), Act::Work, version);
        self.publish((0..KEYS).map(message).collect());
    }

    /// Waits until all that it has sent has taken effect, and has told its events; not for ever, because a bug may keep it from that.
    async fn wait_until_returned(&mut self) -> anyhow::Result<bool> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            self.supervise()?;
            self.look_at_tenants().await?;
            let (effects, events): (i64, i64) =
                sqlx::query_as(EFFECTS).bind(RETURNING).fetch_one(&mut self.connect().await?).await?;
            // Before the books: then they know all that was sent.
            let is_sent = self.publisher.pending() == 0;
            let sent = self.sent();
            let versions =
                sent.keys().filter(|((tenant, _), _)| tenant == RETURNING).flat_map(|(_, all)| all);
            let due = versions.filter(|version| version.class == Class::Confirmed).count();
            if is_sent && usize::try_from(effects)? >= due && events == 0 {
                return Ok(true);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(false)
    }
}
