//! `[[consumers]]`: which queue, which identity, which handler.

use std::time::Duration;

use figment::value::Value;

use super::consumer_handler::{Handlers, handlers};
use super::queue::{QueueArgument, QueueBinding, QueueSettings, queue};
use super::{Problems, Section, consumer_source, mirror};
use crate::decide::{OnConflict, PrecheckMode};
use crate::extract::Source;
use crate::fingerprint::FingerprintPolicy;
use crate::handler::{HttpEndpoint, SqlFunction};
use crate::identity::IdentityPart;
use crate::retry::RetryPolicy;
/// The kind of queue that `oncely topology apply` declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueType {
    /// Replicated; RabbitMQ's recommendation.
    Quorum,
    /// On one node.
    Classic,
}

impl QueueType {
    /// RabbitMQ's `x-queue-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// What becomes of a response that is over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LargeResponse {
    /// Its message is dead-lettered, with nothing of its effect.
    Refuse,
    /// It is stored all the same; PostgreSQL compresses what is over 2 kB.
    Compress,
}

/// Does a consumer work, or only look?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Its messages take effect.
    Consume,
    /// Beside another consumer: it reads a copy of each message from a queue of its own, and runs nothing.
    Observe,
}

/// Behind the names of a consumer that only observes, and of its queues: what it claims must never be taken for processed.
pub(crate) const OBSERVER: &str = ".observe";

/// Leases of a consumer whose handler runs under them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// How long a key is held, from its claim or renewal on; it is renewed every third of that.
    pub time: Duration,
    /// Longest run, from its claim on.
    pub max_run: Duration,
    /// Runs at the same time.
    pub concurrency: u32,
    /// What becomes of a message whose key another run holds.
    pub in_flight: InFlight,
}

/// What becomes of a message whose key another run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// It waits in a retry queue for the rest of the lease, and spends nothing.
    Retry,
    /// It waits in the worker, aside, and asks again every five seconds.
    Wait,
    /// It is dead-lettered as `in_flight`; the run that holds the key goes on.
    Reject,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { time: 30 * SECOND, max_run: 600 * SECOND, concurrency: 32, in_flight: InFlight::Retry }
    }
}

/// A consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Consumer {
    /// Part of the identity: stays the same when queues are split or renamed. Ends with `.observe` where it only observes, and so do its queues.
    pub name: IdentityPart,
    /// Does it work, or only look?
    pub mode: Mode,
    /// The queues it reads.
    pub queues: Vec<String>,
    /// The kind of queue that `oncely topology apply` declares.
    pub queue_type: QueueType,
    /// Does `oncely topology apply` declare the queue itself? Else somebody else does, and sees to it that it is fit.
    pub declare: bool,
    /// Further arguments that it is declared with.
    pub queue_arguments: Vec<(String, QueueArgument)>,
    /// What it is bound to.
    pub bindings: Vec<QueueBinding>,
    /// Where the tenant is.
    pub tenant: Source,
    /// Where the key is.
    pub key: Source,
    /// What is compared when a key comes back.
    pub fingerprint: FingerprintPolicy,
    /// What happens to a key that comes back with another payload.
    pub on_conflict: OnConflict,
    /// The SQL function that does the work; `None` where the embedding program brings a handler in Rust.
    pub handler: Option<SqlFunction>,
    /// The HTTP endpoint that does the work instead, under leases.
    pub http: Option<HttpEndpoint>,
    /// How long a key is remembered after it took effect.
    pub retention: Duration,
    /// The oldest copy of a message that may still come: its time in the queue, in retries, in the dead-letter queue
    /// before somebody moves it back.
    pub redelivery_horizon: Duration,
    /// How failed messages come back.
    pub retry: RetryPolicy,
    /// Longest run of the handler: one message for a handler in Rust, one batch for a batch handler or a SQL function.
    pub deadline: Duration,
    /// What its lanes' sessions allow one statement: as `[postgres]` says, or long enough for the deadline.
    pub statement_timeout: Duration,
    /// How long keys are held, for a handler that runs under leases.
    pub lease: LeaseSettings,
    /// Most messages in one transaction.
    pub batch: u32,
    /// Transactions at the same time, each with a connection of its own.
    pub lanes: u32,
    /// Most messages delivered and not yet acknowledged, per queue.
    pub prefetch: u16,
    /// What its handler locks for a message: batches run in this order, so that two of them don't wait for each other.
    pub lock_order: Option<Source>,
    /// Do tenants take turns within what the broker has sent ahead?
    pub fair: bool,
    /// Bytes that deliveries hold until they are settled; then no more is read.
    pub buffer: u32,
    /// Largest body in bytes; a larger one is dead-lettered.
    pub max_body: u32,
    /// How much a hit in the mirror is believed; `None` means as `[mirror]` says.
    pub precheck: Option<PrecheckMode>,
    /// Does a message with `reply_to` get its handler's response?
    pub replies: bool,
    /// Largest response in bytes, as JSON the way PostgreSQL writes it.
    pub response_limit: u32,
    /// What becomes of a larger one.
    pub on_large_response: LargeResponse,
    /// Are responses, and results of steps under leases, stored encrypted?
    pub encrypt_responses: bool,
}

/// RabbitMQ's default consumer timeout: a delivery that is not settled by then comes back.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl Consumer {
    /// The age that a copy of a message can reach before it comes back for the last time.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.redelivery_horizon.max(self.retry.horizon() + CONSUMER_TIMEOUT)
    }

    /// Does it only look?
    #[must_use]
    pub fn observes(&self) -> bool {
        self.mode == Mode::Observe
    }
}

const DEADLINE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn consumer(
    mut section: Section,
    statement: StatementLimit,
    problems: &mut Problems,
) -> Option<Consumer> {
    let name = section.text("name", problems);
    let place = section.place("name");
    let name = match name {
        None => {
            problems.add(place, "is missing: it is part of the identity, so choose it once");
            None
        }
        Some(text) => match IdentityPart::new(text.as_bytes()) {
            Ok(name) => Some(name),
            Err(error) => {
                problems.add(place, error.to_string());
                None
            }
        },
    };
    let modes = [("consume", Mode::Consume), ("observe", Mode::Observe)];
    let mode = section.choice("mode", Mode::Consume, &modes, problems);
    let mut queues = queues(&mut section, problems);
    let name = match mode {
        Mode::Consume => {
            reserved(name.as_ref(), queues.iter().flatten(), &section, problems);
            name
        }
        Mode::Observe => {
            queues.iter_mut().flatten().for_each(|queue| queue.push_str(OBSERVER));
            name.and_then(|name| observer(&name, &section, problems))
        }
    };
    let queue_types = [("quorum", QueueType::Quorum), ("classic", QueueType::Classic)];
    let queue_type = section.choice("queue_type", QueueType::Quorum, &queue_types, problems);
    let QueueSettings { declare, arguments: queue_arguments, bindings } = queue(&mut section, problems);
    let tenant = consumer_source::source(&mut section, "tenant", problems);
    let key = consumer_source::source(&mut section, "key", problems);
    let fingerprint = fingerprint(&mut section, problems);
    let conflicts = [("dead_letter", OnConflict::DeadLetter), ("duplicate", OnConflict::Duplicate)];
    let on_conflict = section.choice("on_conflict", OnConflict::DeadLetter, &conflicts, problems);
    let lease = lease(section.table("lease", problems), problems);
    let Handlers { function: handler, http } = handlers(&mut section, lease.max_run, problems);
    let retention = section.duration("retention", 7 * DAY, SECOND..=3_650 * DAY, problems);
    let redelivery_horizon = section.duration("redelivery_horizon", DAY, SECOND..=3_650 * DAY, problems);
    let retry = retry(section.table("retry", problems), problems);
    let (deadline, statement_timeout) = deadline(&mut section, handler.is_some(), statement, problems);
    let batch = section.integer("batch", 500, 1..=4_096, problems);
    let lanes = section.integer("lanes", 2, 1..=64, problems);
    let enough = (batch * lanes).saturating_mul(2).min(u32::from(u16::MAX));
    let prefetch = section.integer("prefetch", enough, 1..=u32::from(u16::MAX), problems);
    let lock_order =
        section.has("lock_order").then(|| consumer_source::source(&mut section, "lock_order", problems));
    let fair = section.boolean("fair", false, problems);
    let buffer = section.integer("buffer", 64 << 20, (1 << 20)..=(1 << 30), problems);
    let max_body = section.integer("max_body", 16 << 20, 1..=(128 << 20), problems);
    let precheck = mirror::precheck(&mut section, problems);
    let replies = section.boolean("replies", false, problems);
    let response_limit = section.integer("response_limit", 64 << 10, 1..=(16 << 20), problems);
    let choices = [("refuse", LargeResponse::Refuse), ("compress", LargeResponse::Compress)];
    let on_large_response = section.choice("on_large_response", LargeResponse::Refuse, &choices, problems);
    let encrypt_responses = section.boolean("encrypt_responses", false, problems);
    if encrypt_responses && handler.is_some() {
        problems.add(
            section.place("encrypt_responses"),
            "a SQL function's response is made in the database, which is not to see it: let a handler in Rust or an endpoint do the work",
        );
    }
    if encrypt_responses && replies {
        problems.add(
            section.place("encrypt_responses"),
            "replies are made in the database out of the stored responses, which it could not read: have one of both",
        );
    }
    section.finish(problems);
    Some(Consumer {
        name: name?,
        mode,
        queues: queues?,
        queue_type,
        declare,
        queue_arguments,
        bindings,
        tenant: tenant?,
        key: key?,
        fingerprint,
        on_conflict,
        handler,
        http,
        retention,
        redelivery_horizon,
        retry,
        deadline,
        statement_timeout,
        batch,
        lanes,
        lease,
        prefetch: u16::try_from(prefetch).unwrap_or(u16::MAX),
        lock_order: lock_order.flatten(),
        fair,
        buffer,
        max_body,
        precheck,
        replies,
        response_limit,
        on_large_response,
        encrypt_responses,
    })
}

/// What ends as an observer's name is an observer's: whoever worked under it would take what was observed for processed, or the messages of the
/// observer's queue for its own.
fn reserved<'a>(
    name: Option<&IdentityPart>,
    mut queues: impl Iterator<Item = &'a String>,
    section: &Section,
    problems: &mut Problems,
) {
    let wrong =
        format!("must not end with {OBSERVER:?}: such names are those of consumers in mode = \"observe\"");
    if name.is_some_and(|name| name.as_str().ends_with(OBSERVER)) {
        problems.add(section.place("name"), &wrong);
    }
    if queues.any(|queue| queue.ends_with(OBSERVER)) {
        problems.add(section.place("queue"), &wrong);
    }
}

/// The name of who only observes for a consumer.
fn observer(name: &IdentityPart, section: &Section, problems: &mut Problems) -> Option<IdentityPart> {
    let name = IdentityPart::new(format!("{}{OBSERVER}", name.as_str()).as_bytes());
    let name = name.map_err(|error| {
        problems.add(
            section.place("name"),
            format!("with {OBSERVER:?} behind it (mode = \"observe\") it {error}"),
        );
    });
    name.ok()
}

/// How long one statement may take, and whether somebody said so.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatementLimit {
    pub(super) timeout: Duration,
    pub(super) is_set: bool,
}

/// The deadline, and what a lane's session must allow one statement for its sake: a function is one statement.
fn deadline(
    section: &mut Section,
    is_function: bool,
    statement: StatementLimit,
    problems: &mut Problems,
) -> (Duration, Duration) {
    let show = humantime::format_duration;
    let StatementLimit { timeout, is_set } = statement;
    let range = SECOND / 10..=CONSUMER_TIMEOUT / 2;
    // A handler in Rust is many statements.
    let default = if is_function { DEADLINE.min(timeout) } else { DEADLINE };
    let deadline = section.duration("deadline", default, range, problems);
    if deadline <= timeout {
        return (deadline, timeout);
    }
    if !is_set {
        // Ours comes first.
        return (deadline, deadline + SECOND);
    }
    if is_function {
        problems.add(
            section.place("deadline"),
            format!(
                "{} is longer than postgres.statement_timeout = {}, which would cut the function off; lengthen that, or leave it \
                 out: it follows from the deadline then",
                show(deadline),
                show(timeout)
            ),
        );
    }
    (deadline, timeout)
}

fn queues(section: &mut Section, problems: &mut Problems) -> Option<Vec<String>> {
    let one = section.text("queue", problems);
    let many = section.texts("queues", problems);
    let place = section.place("queue");
    let queues = match (one, many) {
        (Some(_), Some(_)) => {
            problems.add(place, "is set, and queues too; use one of them");
            return None;
        }
        (Some(queue), None) => vec![queue],
        (None, Some(queues)) => queues,
        (None, None) => {
            problems.add(place, "is missing");
            return None;
        }
    };
    // An AMQP short string holds 255 bytes, and the retry queues' names are longer than the queue's.
    if queues.is_empty() || queues.iter().any(|queue| queue.is_empty() || queue.len() > 200) {
        problems.add(place, "must name a queue, in 1 to 200 bytes");
        return None;
    }
    Some(queues)
}

fn fingerprint(section: &mut Section, problems: &mut Problems) -> FingerprintPolicy {
    let place = section.place("fingerprint");
    let advice = "must be \"body\", \"canonical_json\", \"none\" or { json_pointers = [\"/amount\"] }";
    match section.take("fingerprint") {
        None => FingerprintPolicy::Body,
        Some(Value::String(_, word)) => match word.as_str() {
            "body" => FingerprintPolicy::Body,
            "canonical_json" => FingerprintPolicy::CanonicalJson,
            "none" => FingerprintPolicy::None,
            _ => {
                problems.add(place, advice);
                FingerprintPolicy::Body
            }
        },
        Some(Value::Dict(_, values)) => {
            let mut table = Section::new(&place, values);
            let pointers = table.texts("json_pointers", problems).unwrap_or_default();
            table.finish(problems);
            if pointers.is_empty() || pointers.iter().any(|pointer| !pointer.starts_with('/')) {
                problems.add(place, advice);
            }
            FingerprintPolicy::JsonPointers(pointers)
        }
        Some(_) => {
            problems.add(place, advice);
            FingerprintPolicy::Body
        }
    }
}

fn lease(mut table: Section, problems: &mut Problems) -> LeaseSettings {
    let default = LeaseSettings::default();
    let time = table.duration("time", default.time, 5 * SECOND..=3_600 * SECOND, problems);
    let max_run = table.duration("max_run", default.max_run, SECOND..=DAY, problems);
    let concurrency = table.integer("concurrency", default.concurrency, 1..=16_384, problems);
    let choices = [("retry", InFlight::Retry), ("wait", InFlight::Wait), ("reject", InFlight::Reject)];
    let in_flight = table.choice("in_flight", default.in_flight, &choices, problems);
    if max_run < time {
        problems.add(table.place("max_run"), "must not be shorter than lease.time");
    }
    table.finish(problems);
    LeaseSettings { time, max_run, concurrency, in_flight }
}

fn retry(mut table: Section, problems: &mut Problems) -> RetryPolicy {
    let default = RetryPolicy::default();
    let delays = table.durations("delays", problems).unwrap_or_else(|| default.delays.clone());
    let fallback = if delays.is_empty() { 1 } else { default.max_attempts };
    let max_attempts = table.integer("max_attempts", fallback, 1..=1_000, problems);
    let max_crashes = table.integer("max_crashes", default.max_crashes, 1..=1_000, problems);
    if delays.is_empty() && max_attempts > 1 {
        problems.add(
            table.place("delays"),
            "is empty, so max_attempts must be 1: without a delay a retry is a hot loop",
        );
    }
    if delays.windows(2).any(|pair| pair[0] > pair[1]) {
        problems.add(table.place("delays"), "must not fall");
    }
    table.finish(problems);
    RetryPolicy { delays, max_attempts, max_crashes }
}
