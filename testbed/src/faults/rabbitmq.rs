//! RabbitMQ: killed, frozen, alarmed.

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, Kind};
use crate::Arena;

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
            _ => Ok(()),
        }
    }

    fn signal_rabbitmq(&mut self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.rabbitmq()?.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        Ok(kill_process(pid.context("RabbitMQ does not run")?, signal)?)
    }

    async fn ctl(&mut self, arguments: &[&str]) -> anyhow::Result<()> {
        self.rabbitmq()?.ctl(arguments).await.map(drop)
    }
}
