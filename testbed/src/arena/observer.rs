//! A consumer that only observes, beside the one that charges: it gets a copy of each message, and must do nothing but note what it saw.

use std::time::{Duration, Instant};

use lapin::types::{AMQPValue, FieldTable};

use super::Arena;
use super::crew::{Crew, Strike};
use super::member::Member;
use crate::checker::LEASED;

/// Longest wait until it has seen everything.
const SEEN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(super) struct Observer(Crew);

impl Observer {
    pub(super) fn members(&self) -> &[Member] {
        self.0.members()
    }
}

impl Arena {
    /// Starts it, after what charges.
    pub async fn start_observer(&mut self) -> anyhow::Result<()> {
        let Some(charging) = &self.charging else { return Ok(()) };
        let queue = charging.queue().to_owned();
        let mut config = self.config.clone();
        for setting in ["handler", "retry", "lanes"] {
            config = config.set("consumer", setting, "");
        }
        config = config.set("consumer", "mode", "\"observe\"").set("consumer", "retention", "\"30d\"");
        config.consumer = LEASED.to_owned();
        let file = self.folder().join("observer.toml");
        std::fs::write(&file, config.toml(&queue))?;
        config.environment.push(("ONCELY_CONFIG".to_owned(), file.display().to_string()));
        // As topology apply declares it, which asks the broker's HTTP API for what the queue is bound to: this broker has none.
        let broker = self.broker().await?;
        let mut arguments = FieldTable::default();
        for (name, value) in [("x-queue-type", "classic"), ("x-overflow", "drop-head")] {
            arguments.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        for (name, value) in [("x-expires", 86_400_000), ("x-max-length-bytes", 1 << 30)] {
            arguments.insert(name.into(), AMQPValue::LongLongInt(value));
        }
        let copies = format!("{queue}.observe");
        broker.declare_queue(&copies, arguments).await?;
        broker.bind(&copies, &format!("{queue}.in"), "").await?;
        let urls = self.database_urls();
        let member = Member::start(&config, self.folder(), "observer", 1, &urls, &self.database).await?;
        self.observer = Some(Observer(Crew::new(vec![member])));
        Ok(())
    }

    /// Strikes it. Nobody waits for what follows.
    pub async fn strike_observer(&mut self, strike: Strike) -> anyhow::Result<()> {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        self.exits.extend(observer.0.strike(strike).await?.unwrap_or_default());
        Ok(())
    }

    /// Lets it go on where it stood still long enough, and starts it again where it has ended by itself.
    pub(super) fn supervise_observer(&mut self) -> anyhow::Result<()> {
        let Some(observer) = &mut self.observer else { return Ok(()) };
        observer.0.thaw()?;
        self.exits.extend(observer.0.supervise()?);
        Ok(())
    }

    /// Waits until it has seen everything that was published, and ends it.
    pub(super) async fn stop_observer(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        let mut connection = self.database.connect().await?;
        while let Some(charging) = self.charging.as_ref().filter(|_| self.observer.is_some()) {
            let observed = &mut self.evidence.observed;
            (observed.sent, observed.confirmed) = charging.published();
            observed.read(&mut connection).await?;
            if observed.unseen() == 0 || since.elapsed() > SEEN {
                break;
            }
            self.supervise()?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        if let Some(mut observer) = self.observer.take() {
            let (_, exits) = observer.0.end().await?;
            self.exits.extend(exits);
        }
        Ok(())
    }
}
