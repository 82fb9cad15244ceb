//! The catalogue of faults: each is brought about, held for a while, and healed.

mod kind;
mod network;
mod postgres;
mod process;
mod rabbitmq;
mod redis;

use std::time::{Duration, Instant};

pub use kind::Kind;

use crate::Arena;
use crate::arena::Server;
use crate::proxy::Proxy;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: Kind,
    /// To whom, counted round the processes (or sessions) that the kind can strike.
    pub target: usize,
    /// How long, at the most.
    pub hold: Duration,
}

impl Fault {
    /// On the first target, as long as is usual.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self { kind, target: 0, hold: kind.holds().0 }
    }

    /// Kind, target and time, for reports.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{} #{} for {:.1?}", self.kind.name(), self.target, self.hold)
    }
}

impl Arena {
    /// Brings a fault about, holds it, heals it.
    pub async fn run_fault(&mut self, fault: &Fault) -> anyhow::Result<()> {
        self.inject(fault).await?;
        self.hold(fault).await;
        self.heal(fault).await
    }

    /// Waits as long as the fault holds: until it has struck, where it strikes once.
    pub async fn hold(&mut self, fault: &Fault) {
        let start = Instant::now();
        let before = self.struck();
        while start.elapsed() < fault.hold {
            if fault.kind.strikes_once() && self.struck() > before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How often faults that wait for their moment have struck so far.
    #[must_use]
    pub fn struck(&self) -> u64 {
        let members = self.workers.iter().chain(&self.relays);
        let servers = [Server::Postgres, Server::RabbitMq, Server::Redis];
        let links = members.flat_map(|member| servers.map(|server| member.link(server)));
        links.flatten().map(Proxy::struck).sum()
    }

    /// Brings a fault about.
    pub async fn inject(&mut self, fault: &Fault) -> anyhow::Result<()> {
        self.evidence.fairness.begin_fault();
        self.note_interruption(false);
        match fault.kind.group() {
            kind::Group::Process => self.inject_process(fault).await,
            kind::Group::Postgres => self.inject_postgres(fault).await,
            kind::Group::RabbitMq => self.inject_rabbitmq(fault).await,
            kind::Group::Redis => self.inject_redis(fault).await,
            kind::Group::Network => self.inject_network(fault),
        }
    }

    /// Ends it.
    pub async fn heal(&mut self, fault: &Fault) -> anyhow::Result<()> {
        let healed = match fault.kind.group() {
            kind::Group::Process => self.heal_process(fault).await,
            kind::Group::Postgres => self.heal_postgres(fault).await,
            kind::Group::RabbitMq => self.heal_rabbitmq(fault).await,
            kind::Group::Redis => self.heal_redis(fault).await,
            kind::Group::Network => self.heal_network(fault),
        };
        self.evidence.fairness.end_fault();
        healed
    }
}
