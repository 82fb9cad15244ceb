//! The systems that do the job.

use super::program::Program;
use crate::bench::job::{Consumer, Handler, Job, Ours, QueueType};

/// One of the systems that are compared.
#[derive(Debug)]
pub(crate) struct Contender {
    /// Its name for `--only`, in the table and in JSON.
    pub(crate) name: &'static str,
    /// The versions and the settings that it runs with; the pages of its documentation are named in its program.
    pub(crate) setup: &'static str,
    /// The promise of its documentation, and the result of a crash between effect and completion.
    pub(crate) guarantee: &'static str,
    pub(crate) system: System,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum System {
    /// Worker and relay.
    Ours(Handler),
    /// `bench naive`.
    Naive,
    Peer {
        program: Program,
        /// The payments have a unique index, because the peer may do a message's work twice.
        unique_key: bool,
    },
}

impl System {
    /// Returns a peer's program.
    pub(crate) fn program(self) -> Option<Program> {
        match self {
            Self::Peer { program, .. } => Some(program),
            Self::Ours(_) | Self::Naive => None,
        }
    }

    /// Returns the job as the benchmark's sites know it; a peer's site has a database and a queue, and no more.
    pub(crate) fn job(self) -> Job {
        let queue_type = QueueType::Classic;
        match self {
            Self::Ours(handler) => Job::ours(Ours::full(handler), queue_type, 0),
            Self::Naive => Job::naive(queue_type, 0),
            Self::Peer { .. } => Job { consumer: Consumer::Bare, ..Job::naive(queue_type, 0) },
        }
    }
}

pub(crate) const CONTENDERS: [Contender; 8] = [
    Contender {
        name: "oncely-batch",
        setup: "worker and relay, defaults, a SQL function per batch",
        guarantee: "exactly once: key, payment and audit row are one commit before the acknowledgement; a crash before it undoes all, after it the redelivery finds the key",
        system: System::Ours(Handler::Batch),
    },
    Contender {
        name: "oncely-message",
        setup: "worker and relay, defaults, a SQL function per message",
        guarantee: "as oncely-batch",
        system: System::Ours(Handler::PerMessage),
    },
    Contender {
        name: "naive",
        setup: "bench naive: 8 connections, prefetch 100, prepared statements",
        guarantee: "exactly once: key and payment are one commit before the acknowledgement",
        system: System::Naive,
    },
    Contender {
        name: "pg-boss",
        setup: "pg-boss 12.38.0: insert() of up to 500 with the message's key as id; transactional work(), batchSize 500, localConcurrency 2, burstWhenBatchFull, notify, partition",
        guarantee: "\"exactly-once delivery\": completion commits with the handler's writes (transactional); a crash before it repeats the batch after expireInSeconds (15 min). An id is known while its row is kept: deleteAfterSeconds, 7 days",
        system: System::Peer { program: Program::Node("pg-boss.mjs"), unique_key: false },
    },
    Contender {
        name: "graphile-worker",
        setup: "graphile-worker 0.18.0: addJobs() of up to 500 with jobKey; concurrentJobs 24, maxPoolSize 25, localQueue 500, completeJobBatchDelay 0",
        guarantee: "\"each job will execute at least once\"; a crash between effect and completion repeats the job once its lock is 4 h old; a finished job's key is forgotten. Once by the payments' unique index",
        system: System::Peer { program: Program::Node("graphile-worker.mjs"), unique_key: true },
    },
    Contender {
        name: "pgmq",
        setup: "PGMQ 1.13.0 by the Python client pgmq 1.1.4: send_batch, read and delete_batch of up to 500; 2 readers, visibility timeout 30 s",
        guarantee: "\"Exactly-once delivery: guaranteed delivery to a single consumer within a visibility timeout\"; the delete commits with the payments, a crash before it repeats the batch after 30 s. A queue has no keys: duplicates are kept out by the payments' unique index",
        system: System::Peer { program: Program::Python("pgmq_peer.py"), unique_key: true },
    },
    Contender {
        name: "dbos",
        setup: "DBOS Transact 4.27.6 with drizzle-datasource 4.27.6: startWorkflow() with the message's key as workflow id, a transaction step; two pools of 20",
        guarantee: "\"Transactions commit exactly once\": the payment commits with its step's checkpoint; a crash before it resumes the workflow at the next start; one that ends in an error is not repeated. A workflow id is known until its row is deleted",
        system: System::Peer { program: Program::Node("dbos.mjs"), unique_key: false },
    },
    Contender {
        name: "restate",
        setup: "Restate 1.7.12 (one node, defaults, synced log) with SDK 1.17.2: one-way calls with the message's key as idempotency key; pool of 20",
        guarantee: "a call with a key is not executed again for a day (\"within 24 hours\"); one that fails is retried, 70 times by default, and then paused: a crash between effect and completion repeats the insert. Once by the payments' unique index",
        system: System::Peer { program: Program::Restate("restate.mjs"), unique_key: true },
    },
];
