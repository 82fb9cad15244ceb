//! All kinds of faults.

use std::time::Duration;

use crate::arena::Server;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A worker gets SIGKILL and is started again.
    KillWorker,
    /// All workers get SIGKILL at once.
    KillWorkers,
    /// A worker stands still (SIGSTOP), longer than two heartbeats, then goes on.
    FreezeWorker,
    /// A worker gets SIGTERM, ends in order, and is started again.
    TermWorker,
    /// A relay gets SIGKILL.
    KillRelay,
    /// A relay stands still, with rows locked perhaps, then goes on.
    FreezeRelay,
    /// A relay gets SIGTERM.
    TermRelay,
    /// PostgreSQL's postmaster gets SIGKILL.
    KillPostgres,
    /// All of PostgreSQL's processes stand still.
    FreezePostgres,
    /// One backend gets SIGKILL: the server resets itself.
    KillBackend,
    /// PostgreSQL is shut down fast (SIGINT) and started again.
    ShutdownPostgres,
    /// `pg_terminate_backend` for one session of a worker.
    TerminateBackend,
    /// `pg_terminate_backend` for all sessions of workers and relays.
    TerminateBackends,
    /// `pg_cancel_backend` for all sessions of workers.
    CancelBackends,
    /// The handler's table refuses the worker's role.
    RevokeGrant,
    /// The handler's table is locked.
    LockTable,
    /// A row that a handler wants is locked… by way of the whole key table, in a mode that lets readers through.
    LockKeys,
    /// The worker's role has no connection left.
    NoConnections,
    /// New sessions can only read.
    ReadOnly,
    /// The handler's function is gone, and comes back.
    DropFunction,
    /// An operator pauses the consumer, and resumes it.
    PauseConsumer,
    /// The clock is set back by three seconds, and forward again: what is stored is of the future.
    ClockBack,
    /// The broker gets SIGKILL.
    KillRabbitMq,
    /// The broker stands still.
    FreezeRabbitMq,
    /// `rabbitmqctl stop_app` and `start_app`.
    StopApp,
    /// `rabbitmqctl close_all_connections`.
    CloseConnections,
    /// Memory alarm.
    MemoryAlarm,
    /// Disk alarm.
    DiskAlarm,
    /// The user loses all permissions, and gets them back.
    ClearPermissions,
    /// The broker takes channels away from consumers that do not settle within two seconds, while the handler's table is
    /// locked for longer.
    ConsumerTimeout,
    /// The queues of events lose their bindings: events come back unroutable.
    UnbindEvents,
    /// Redis gets SIGKILL: empty afterwards.
    KillRedis,
    /// Redis stands still.
    FreezeRedis,
    /// FLUSHALL.
    FlushRedis,
    /// No memory for writes (-OOM).
    RedisOom,
    /// Writes are refused (-READONLY).
    RedisReadOnly,
    /// CLIENT PAUSE.
    PauseRedis,
    /// Other types and foreign fields where the mirror's buckets are.
    JunkInRedis,
    /// All of Redis's clients are disconnected (CLIENT KILL).
    KillRedisClients,
    /// A process's connections to a server are reset.
    Cut(Server),
    /// They are open, and nothing comes through.
    BlackHole(Server),
    /// Each piece is late.
    Slow(Server),
    /// Few bytes a second.
    Throttle(Server),
    /// The server's side is closed, the other not.
    HalfClose(Server),
    /// Connections are reset and new ones refused.
    Refuse(Server),
    /// Reset in the middle of a message to the server.
    TearUp(Server),
    /// Reset in the middle of a message from the server.
    TearDown(Server),
    /// Connections stay open and silent until the other side gives them up; new ones are well. Only by name: by design a
    /// worker believes for minutes in a PostgreSQL that does not answer.
    Forget(Server),
    /// COMMIT is done, its reply is lost.
    LoseCommitReply,
    /// COMMIT never arrives.
    CutBeforeCommit,
    /// An acknowledgement is lost.
    LoseAck,
    /// The confirm of a dead letter or of a copy for a retry is lost.
    LoseConfirm,
    /// Such a copy itself is lost.
    LosePublish,
    /// Redis's answers are garbled.
    Garble,
}

/// Which file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Process,
    Postgres,
    RabbitMq,
    Redis,
    Network,
}

impl Kind {
    /// All of them, but for [`Kind::Forget`].
    #[must_use]
    pub fn all() -> Vec<Self> {
        use Server::{Postgres, RabbitMq, Redis};
        let mut all = vec![
            Self::KillWorker,
            Self::KillWorkers,
            Self::FreezeWorker,
            Self::TermWorker,
            Self::KillRelay,
            Self::FreezeRelay,
            Self::TermRelay,
            Self::KillPostgres,
            Self::FreezePostgres,
            Self::KillBackend,
            Self::ShutdownPostgres,
            Self::TerminateBackend,
            Self::TerminateBackends,
            Self::CancelBackends,
            Self::RevokeGrant,
            Self::LockTable,
            Self::LockKeys,
            Self::NoConnections,
            Self::ReadOnly,
            Self::DropFunction,
            Self::PauseConsumer,
            Self::ClockBack,
            Self::KillRabbitMq,
            Self::FreezeRabbitMq,
            Self::StopApp,
            Self::CloseConnections,
            Self::MemoryAlarm,
            Self::DiskAlarm,
            Self::ClearPermissions,
            Self::ConsumerTimeout,
            Self::UnbindEvents,
            Self::KillRedis,
            Self::FreezeRedis,
            Self::FlushRedis,
            Self::RedisOom,
            Self::RedisReadOnly,
            Self::PauseRedis,
            Self::JunkInRedis,
            Self::KillRedisClients,
            Self::LoseCommitReply,
            Self::CutBeforeCommit,
            Self::LoseAck,
            Self::LoseConfirm,
            Self::LosePublish,
            Self::Garble,
        ];
        for of in [
            Self::Cut,
            Self::BlackHole,
            Self::Slow,
            Self::Throttle,
            Self::HalfClose,
            Self::Refuse,
            Self::TearUp,
            Self::TearDown,
        ] {
            all.extend([Postgres, RabbitMq, Redis].map(of));
        }
        all
    }

    /// Those that have a promise of their own to break: short trials must have them.
    #[must_use]
    pub fn core() -> Vec<Self> {
        use Server::{Postgres, RabbitMq, Redis};
        vec![
            Self::KillWorker,
            Self::KillWorkers,
            Self::FreezeWorker,
            Self::TermWorker,
            Self::KillRelay,
            Self::KillPostgres,
            Self::FreezePostgres,
            Self::TerminateBackends,
            Self::RevokeGrant,
            Self::LockTable,
            Self::KillRabbitMq,
            Self::FreezeRabbitMq,
            Self::CloseConnections,
            Self::MemoryAlarm,
            Self::KillRedis,
            Self::FlushRedis,
            Self::JunkInRedis,
            Self::Cut(RabbitMq),
            Self::BlackHole(Postgres),
            Self::BlackHole(Redis),
            Self::LoseCommitReply,
            Self::CutBeforeCommit,
            Self::LoseAck,
            Self::LoseConfirm,
        ]
    }

    /// A name for reports: `kill_worker`, `cut_postgres`.
    #[must_use]
    pub fn name(self) -> String {
        let mut name = String::new();
        for character in format!("{self:?}").chars() {
            match character {
                '(' => {}
                ')' => break,
                upper if upper.is_uppercase() => {
                    if !name.is_empty() {
                        name.push('_');
                    }
                    name.extend(upper.to_lowercase());
                }
                other => name.push(other),
            }
        }
        name.replace("rabbit_mq", "rabbitmq")
    }

    /// Shortest and longest time that it is held.
    #[must_use]
    pub fn holds(self) -> (Duration, Duration) {
        let millis = |from: u64, to: u64| (Duration::from_millis(from), Duration::from_millis(to));
        match self {
            // Past two heartbeats of two seconds.
            Self::FreezeWorker | Self::FreezeRabbitMq | Self::BlackHole(Server::RabbitMq) => {
                millis(1_000, 7_000)
            }
            Self::FreezeRelay | Self::FreezeRedis | Self::BlackHole(_) => millis(500, 4_000),
            // Half of them are longer than a lease.
            Self::FreezePostgres | Self::ShutdownPostgres => millis(1_500, 8_500),
            Self::KillPostgres | Self::KillRabbitMq | Self::KillRedis | Self::StopApp => millis(0, 1_500),
            // Well below lock_timeout, which would be an attempt.
            Self::LockTable | Self::LockKeys => millis(500, 4_000),
            // Read every two and a half seconds.
            Self::PauseConsumer | Self::ConsumerTimeout => millis(4_000, 6_000),
            Self::Slow(_) | Self::Throttle(_) | Self::Refuse(_) | Self::HalfClose(_) => millis(500, 3_000),
            kind if kind.strikes_once() => millis(5_000, 5_000),
            Self::MemoryAlarm
            | Self::DiskAlarm
            | Self::ClearPermissions
            | Self::UnbindEvents
            | Self::RedisOom
            | Self::RedisReadOnly
            | Self::PauseRedis
            | Self::Garble
            | Self::RevokeGrant
            | Self::NoConnections
            | Self::ReadOnly
            | Self::DropFunction
            | Self::ClockBack
            | Self::JunkInRedis => millis(500, 3_000),
            _ => millis(0, 500),
        }
    }

    /// It waits for its moment.
    #[must_use]
    pub fn strikes_once(self) -> bool {
        matches!(
            self,
            Self::LoseCommitReply
                | Self::CutBeforeCommit
                | Self::LoseAck
                | Self::LoseConfirm
                | Self::LosePublish
                | Self::TearUp(_)
                | Self::TearDown(_)
        )
    }

    /// May strike while another fault holds: it needs no server to be brought about, nor to be healed. Never together with
    /// another one of these.
    #[must_use]
    pub fn may_join(self) -> bool {
        matches!(self.group(), Group::Process | Group::Network) && !self.strikes_once()
    }

    pub(super) fn group(self) -> Group {
        match self {
            Self::KillWorker
            | Self::KillWorkers
            | Self::FreezeWorker
            | Self::TermWorker
            | Self::KillRelay
            | Self::FreezeRelay
            | Self::TermRelay => Group::Process,
            Self::KillPostgres
            | Self::FreezePostgres
            | Self::KillBackend
            | Self::ShutdownPostgres
            | Self::TerminateBackend
            | Self::TerminateBackends
            | Self::CancelBackends
            | Self::RevokeGrant
            | Self::LockTable
            | Self::LockKeys
            | Self::NoConnections
            | Self::ReadOnly
            | Self::DropFunction
            | Self::PauseConsumer
            | Self::ClockBack => Group::Postgres,
            Self::KillRabbitMq
            | Self::FreezeRabbitMq
            | Self::StopApp
            | Self::CloseConnections
            | Self::MemoryAlarm
            | Self::DiskAlarm
            | Self::ClearPermissions
            | Self::ConsumerTimeout
            | Self::UnbindEvents => Group::RabbitMq,
            Self::KillRedis
            | Self::FreezeRedis
            | Self::FlushRedis
            | Self::RedisOom
            | Self::RedisReadOnly
            | Self::PauseRedis
            | Self::JunkInRedis
            | Self::KillRedisClients => Group::Redis,
            _ => Group::Network,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_name_of_its_own() {
        let names: BTreeSet<String> = Kind::all().into_iter().map(Kind::name).collect();
        assert_eq!(names.len(), Kind::all().len());
        assert!(names.contains("kill_rabbitmq") && names.contains("black_hole_postgres"));
    }
}
