//! What goes wrong, and who has to say so in which words.

use std::time::Duration;

use anyhow::Context as _;
use testbed::{Broker, Signal};

use super::observer::Observer;
use super::shop::Shop;

/// In what is said one sentence has all of these words.
type Words = &'static [&'static str];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The table of the handler of `payments` has another name.
    BrokenHandler,
    /// It raises an exception for every message.
    RaisingHandler,
    /// That of `emails` raises one for one tenant of four.
    RaisingForATenant,
    StoppedRelay,
    KilledRelay,
    /// That of `payments`.
    DeletedQueue,
    /// The only worker stands still (SIGSTOP).
    FrozenWorker,
    RedisGone,
    PostgresGone,
    RabbitmqGone,
}

impl Trouble {
    pub(super) const ALL: [Self; 10] = [
        Self::BrokenHandler,
        Self::RaisingHandler,
        Self::RaisingForATenant,
        Self::StoppedRelay,
        Self::KilledRelay,
        Self::DeletedQueue,
        Self::FrozenWorker,
        Self::RedisGone,
        Self::PostgresGone,
        Self::RabbitmqGone,
    ];

    /// For the command line and for programs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BrokenHandler => "broken_handler",
            Self::RaisingHandler => "raising_handler",
            Self::RaisingForATenant => "raising_for_a_tenant",
            Self::StoppedRelay => "stopped_relay",
            Self::KilledRelay => "killed_relay",
            Self::DeletedQueue => "deleted_queue",
            Self::FrozenWorker => "frozen_worker",
            Self::RedisGone => "redis_gone",
            Self::PostgresGone => "postgres_gone",
            Self::RabbitmqGone => "rabbitmq_gone",
        }
    }

    /// Brings it about.
    pub(super) async fn begin(self, shop: &mut Shop) -> anyhow::Result<()> {
        match self {
            Self::BrokenHandler => shop.execute("alter table shop.payments rename to payments_2").await,
            Self::RaisingHandler => shop.execute("insert into shop.closed values ('payments', '*')").await,
            Self::RaisingForATenant => {
                shop.execute("insert into shop.closed values ('emails', 'initech')").await
            }
            Self::StoppedRelay => shop.relay.terminate(Duration::from_secs(30)).await.map(drop),
            Self::KilledRelay => shop.relay.kill(),
            Self::DeletedQueue => {
                let broker = Broker::connect(&shop.servers.urls().rabbitmq).await?;
                broker.delete_queue("payments").await
            }
            Self::FrozenWorker => shop.worker.signal(Signal::STOP),
            Self::RedisGone => shop.servers.redis.as_mut().context("no Redis")?.kill(),
            Self::PostgresGone => shop.servers.postgres.as_mut().context("no PostgreSQL")?.kill(),
            Self::RabbitmqGone => shop.servers.rabbitmq.as_mut().context("no RabbitMQ")?.kill(),
        }
    }

    /// Mends it.
    pub(super) async fn end(self, shop: &mut Shop) -> anyhow::Result<()> {
        match self {
            Self::BrokenHandler => shop.execute("alter table shop.payments_2 rename to payments").await,
            Self::RaisingHandler | Self::RaisingForATenant => shop.execute("truncate shop.closed").await,
            Self::StoppedRelay | Self::KilledRelay => shop.relay.start_again(),
            Self::DeletedQueue => shop.verb(&["topology", "apply"]).await,
            Self::FrozenWorker => shop.worker.signal(Signal::CONT),
            Self::RedisGone => shop.servers.redis.as_mut().context("no Redis")?.restart().await,
            Self::PostgresGone => shop.servers.postgres.as_mut().context("no PostgreSQL")?.restart().await,
            Self::RabbitmqGone => shop.servers.rabbitmq.as_mut().context("no RabbitMQ")?.restart().await,
        }
    }

    /// What an observer has to say: one of these. None where it is not its business.
    pub(super) fn words(self, observer: Observer) -> &'static [Words] {
        match observer {
            Observer::Readyz => self.readyz(),
            Observer::Status => self.status(),
            Observer::Top => self.top(),
            Observer::Console => self.console(),
            Observer::Doctor => self.doctor(),
            Observer::Alert => self.alert(),
        }
    }

    fn readyz(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["worker 503", "payments is stalled", "42P01"]],
            Self::RaisingHandler => &[&["worker 503", "payments is stalled", "P0001"]],
            // Messages go on.
            Self::RaisingForATenant => &[],
            Self::StoppedRelay | Self::KilledRelay => &[&["relay: no answer"]],
            Self::DeletedQueue => &[&["worker 503", "payments is not subscribed to payments"]],
            Self::FrozenWorker => &[&["worker: no answer"]],
            Self::RedisGone => &[&["worker 200: ready (degraded: Redis does not answer"]],
            Self::PostgresGone => &[&["worker 503", "PostgreSQL does not answer"]],
            Self::RabbitmqGone => &[&["worker 503", "RabbitMQ"], &["worker 503", "not subscribed"]],
        }
    }

    fn status(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["exit 5 danger payments: is stalled", "42P01"]],
            Self::RaisingHandler => &[&["exit 5 danger payments: is stalled", "the till does not open"]],
            Self::RaisingForATenant => {
                &[&["exit 1 look emails:", "tenant initech", "the till does not open"]]
            }
            Self::StoppedRelay | Self::KilledRelay => &[&["exit 1 look relay: no relay runs"]],
            Self::DeletedQueue => &[&["exit 5 danger payments: the queue payments does not exist"]],
            Self::FrozenWorker => &[&["exit 5 danger payments: no worker consumes payments"]],
            Self::RedisGone => &[&["exit 1 look Redis: does not answer", "only slower"]],
            Self::PostgresGone => &[&["exit 3 postgres:"]],
            Self::RabbitmqGone => &[&["exit 3 rabbitmq:"]],
        }
    }

    fn top(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["payments", "STALLED", "42P01"]],
            Self::RaisingHandler => &[&["payments", "STALLED", "the till does not open"]],
            Self::RaisingForATenant => &[&["emails", "initech", "the till does not open"]],
            Self::StoppedRelay | Self::KilledRelay => &[&["! no relay runs"]],
            Self::DeletedQueue => &[&["payments", "NO QUEUE"]],
            Self::FrozenWorker => &[&["payments", "NO WORKER"]],
            Self::RedisGone => &[&["✗ Redis"]],
            Self::PostgresGone => &[&["✗ PostgreSQL"]],
            Self::RabbitmqGone => &[&["✗ RabbitMQ"]],
        }
    }

    fn console(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["Action needed now.", "payments: is stalled", "42P01"]],
            Self::RaisingHandler => &[&["Action needed now.", "payments:", "the till does not open"]],
            Self::RaisingForATenant => &[&["tenant initech", "the till does not open"]],
            Self::StoppedRelay | Self::KilledRelay => &[&["relay no relay runs"]],
            Self::DeletedQueue => &[&["Action needed now.", "payments: the queue payments does not exist"]],
            Self::FrozenWorker => &[&["Action needed now.", "no worker consumes"]],
            Self::RedisGone => &[&["Redis does not answer", "only slower"]],
            Self::PostgresGone => &[&["PostgreSQL does not answer"]],
            Self::RabbitmqGone => &[&["RabbitMQ does not answer"]],
        }
    }

    fn doctor(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["live.stalled payments:", "42P01"]],
            Self::RaisingHandler => &[&["live.stalled payments:", "the till does not open"]],
            // It looks at the surroundings, not at messages.
            Self::RaisingForATenant => &[],
            Self::StoppedRelay | Self::KilledRelay => &[&["live.relay relay: none lives"]],
            Self::DeletedQueue => &[&["error mq.", "payments"]],
            Self::FrozenWorker => &[&["live.processes worker worker-1: is silent"]],
            Self::RedisGone => &[&["unreachable Redis"]],
            Self::PostgresGone => &[&["unreachable PostgreSQL"]],
            Self::RabbitmqGone => &[&["unreachable RabbitMQ"]],
        }
    }

    fn alert(self) -> &'static [Words] {
        match self {
            Self::BrokenHandler => &[&["page OncelyConsumerStalled: Consumer payments"]],
            Self::RaisingHandler => &[&["page OncelyConsumerStalled: Consumer payments"]],
            Self::RaisingForATenant => &[&["ticket OncelyMessagesFailing: ", "emails"]],
            Self::StoppedRelay | Self::KilledRelay => &[&["page OncelyRelayGone"]],
            Self::DeletedQueue => &[&["page OncelyConsumerUnsubscribed", "payments"]],
            Self::FrozenWorker => &[&["ticket OncelyProcessDown"]],
            Self::RedisGone => &[&["ticket OncelyRedisAway"]],
            Self::PostgresGone => &[&["page OncelyPostgresAway"]],
            Self::RabbitmqGone => &[&["page OncelyRabbitmqAway"]],
        }
    }
}
