//! RabbitMQ: killed, frozen, alarmed.

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, Kind};
use crate::Arena;
use crate::checker::events::{EXCHANGE, FREE, ORDERED};

impl Arena {
    pub(super) async fn inject_rabbitmq(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillRabbitMq => self.rabbitmq()?.kill(),
            Kind::FreezeRabbitMq => self.signal_rabbitmq(Signal::STOP),
            Kind::StopApp => self.ctl(&["stop_app"]).await,
            Kind::CloseConnections => self.ctl(&["close_all_connections", "a fault"]).await,
            Kind::MemoryAlarm => self.ctl(&["set_vm_memory_high_watermark", "0.00001"]).await,
            Kind::DiskAlarm => self.ctl(&["set_disk_free_limit", "100000GB"]).await,
            Kind::ClearPermissions => {
                self.ctl(&["clear_permissions", "guest"]).await?;
                self.ctl(&["close_all_connections", "no permission"]).await
            }
            Kind::ConsumerTimeout => {
                self.set_consumer_timeout(2_000, 1_000).await?;
                self.lock("lock table judge.log in exclusive mode", fault.hold);
                Ok(())
            }
            Kind::UnbindEvents => {
                let broker = self.broker().await?;
                for (queue, key) in [ORDERED, FREE] {
                    broker.unbind(queue, EXCHANGE, key).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn heal_rabbitmq(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillRabbitMq => self.rabbitmq()?.restart().await,
            Kind::FreezeRabbitMq => self.signal_rabbitmq(Signal::CONT),
            Kind::StopApp => self.ctl(&["start_app"]).await,
            Kind::MemoryAlarm => self.ctl(&["set_vm_memory_high_watermark", "0.4"]).await,
            Kind::DiskAlarm => self.ctl(&["set_disk_free_limit", "50MB"]).await,
            Kind::ClearPermissions => self.ctl(&["set_permissions", "guest", ".*", ".*", ".*"]).await,
            Kind::UnbindEvents => {
                let broker = self.broker().await?;
                for (queue, key) in [ORDERED, FREE] {
                    broker.bind(queue, EXCHANGE, key).await?;
                }
                // The broker may be killed next.
                self.rabbitmq()?.flush().await
            }
            // The broker's defaults.
            Kind::ConsumerTimeout => self.set_consumer_timeout(1_800_000, 60_000).await,
            _ => Ok(()),
        }
    }

    /// Both in milliseconds. A channel reads them when it is opened, so all are opened anew.
    async fn set_consumer_timeout(&mut self, timeout: u32, tick: u32) -> anyhow::Result<()> {
        let set = format!(
            "application:set_env(rabbit, consumer_timeout, {timeout}), \
             application:set_env(rabbit, channel_tick_interval, {tick})."
        );
        self.ctl(&["eval", &set]).await?;
        self.ctl(&["close_all_connections", "a new timeout"]).await
    }

    fn signal_rabbitmq(&mut self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.rabbitmq()?.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(kill_process(pid.context("RabbitMQ does not run")?, signal)?)
    }

    async fn ctl(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.rabbitmq()?.ctl(arguments).await.map(drop)
    }
}
