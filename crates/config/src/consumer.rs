//! `[[consumers]]`: queues, identity and handler of a consumer.

use std::time::Duration;

use figment::value::Value;

use super::consumer_handler::{Handlers, handlers};
use super::queue::{QueueArgument, QueueBinding, QueueSettings, queue};
use super::{Problems, Section, consumer_source, mirror};
use oncely_core::decide::{OnConflict, PrecheckMode};
use oncely_core::extract::Source;
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::identity::IdentityPart;
use oncely_core::retry::RetryPolicy;
use oncely_handler::{HttpEndpoint, SqlFunction};
/// The kind of queue that `oncely topology apply` declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// Treatment of responses over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeResponse {
    /// Dead-letters the message without any of its effect.
    Refuse,
    /// Stores the response; PostgreSQL compresses values over 2 kB.
    Compress,
}

/// Whether a consumer's messages take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Messages take effect.
    Consume,
    /// Reads a copy of each message of another consumer from its own queue, and runs nothing.
    Observe,
}

/// Suffix of the names of an observing consumer and its queues: its claims must never count as processed.
pub const OBSERVER: &str = ".observe";

/// Leases of a consumer with a handler that runs under them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseSettings {
    /// Length of a lease, from its claim or renewal on; it is renewed every third of that.
    pub time: Duration,
    /// Maximum length of a run, from its claim on.
    pub max_run: Duration,
    /// Limit of concurrent runs.
    pub concurrency: u32,
    /// Treatment of a message with a key that another run holds.
    pub in_flight: InFlightPolicy,
}

/// Treatment of a message with a key that another run holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// Waits in a retry queue for the rest of the lease; no attempt is counted.
    Retry,
    /// Waits in the worker, aside, and claims again every five seconds.
    Wait,
    /// Is dead-lettered as `in_flight`; the run that holds the key goes on.
    Reject,
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self { time: 30 * SECOND, max_run: 600 * SECOND, concurrency: 32, in_flight: InFlightPolicy::Retry }
    }
}

/// Settings of a consumer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConsumerSettings {
    /// Name, part of the identity: stays the same when queues are split or renamed. Ends with `.observe` for an observer, as do its queues.
    pub name: IdentityPart,
    /// Whether messages take effect.
    pub mode: Mode,
    /// Queues that it reads.
    pub queues: Vec<String>,
    /// Kind of queue that `oncely topology apply` declares.
    pub queue_type: QueueType,
    /// Whether `oncely topology apply` declares the queue itself. If not, its owner declares it with suitable arguments.
    pub declare: bool,
    /// Further arguments of the declaration.
    pub queue_arguments: Vec<(String, QueueArgument)>,
    /// Bindings of the queue.
    pub bindings: Vec<QueueBinding>,
    /// Source of the tenant.
    pub tenant: Source,
    /// Source of the key.
    pub key: Source,
    /// Fingerprint policy for a key that comes back.
    pub fingerprint: FingerprintPolicy,
    /// Treatment of a key that comes back with another payload.
    pub on_conflict: OnConflict,
    /// SQL function of the handler; `None` if the embedding program provides a handler in Rust.
    pub handler: Option<SqlFunction>,
    /// HTTP endpoint of the handler, under leases.
    pub http: Option<HttpEndpoint>,
    /// How long a key is remembered after it took effect.
    pub retention: Duration,
    /// Maximum age of a copy of a message that may still arrive: its time in the queue, in retries, and in the dead-letter queue until it
    /// is requeued.
    pub redelivery_horizon: Duration,
    /// Retries of failed messages.
    pub retry: RetryPolicy,
    /// Maximum run of the handler: one message for a handler in Rust, one batch for a batch handler or a SQL function.
    pub deadline: Duration,
    /// Statement timeout of its lanes' sessions: the one of `[postgres]`, or long enough for the deadline.
    pub statement_timeout: Duration,
    /// Leases, for a handler that runs under them.
    pub lease: LeaseSettings,
    /// Maximum number of messages in one transaction.
    pub batch: u32,
    /// Number of concurrent transactions, each with its own connection.
    pub lanes: u32,
    /// Maximum number of unacknowledged deliveries per queue.
    pub prefetch: u16,
    /// Source of the value that its handler locks: batches run in this order, so that two of them don't wait for each other.
    pub lock_order: Option<Source>,
    /// Whether tenants take turns within the prefetched messages.
    pub fair: bool,
    /// Maximum bytes of unsettled deliveries; beyond it no more is read.
    pub buffer: u32,
    /// Maximum size of a body in bytes; a larger one is dead-lettered.
    pub max_body: u32,
    /// Trust in a mirror hit; `None` uses the value of `[mirror]`.
    pub precheck: Option<PrecheckMode>,
    /// Whether a message with `reply_to` gets its handler's response.
    pub replies: bool,
    /// Maximum size of a response in bytes, as JSON in PostgreSQL's format.
    pub response_limit: u32,
    /// Treatment of a larger one.
    pub on_large_response: LargeResponse,
    /// Whether responses, and results of steps under leases, are stored encrypted.
    pub encrypt_responses: bool,
}

/// RabbitMQ's default consumer timeout: a delivery that is not settled by then is redelivered.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl ConsumerSettings {
    /// Returns the maximum age of a copy of a message at its last redelivery.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.redelivery_horizon.max(self.retry.horizon() + CONSUMER_TIMEOUT)
    }

    /// Returns whether it only observes.
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
) -> Option<ConsumerSettings> {
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
    Some(ConsumerSettings {
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

/// Reports names with an observer's suffix: a consumer with such a name would treat observed keys as processed, or an observer's queue as
/// its own.
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

/// Returns the name of a consumer's observer.
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

/// Statement timeout, and whether it is configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatementLimit {
    pub(super) timeout: Duration,
    pub(super) is_set: bool,
}

/// Reads the deadline, and the statement timeout that a lane's session needs for it: a function is one statement.
fn deadline(
    section: &mut Section,
    is_function: bool,
    statement: StatementLimit,
    problems: &mut Problems,
) -> (Duration, Duration) {
    let show = humantime::format_duration;
    let StatementLimit { timeout, is_set } = statement;
    let range = SECOND / 10..=CONSUMER_TIMEOUT / 2;
    // A handler in Rust runs many statements.
    let default = if is_function { DEADLINE.min(timeout) } else { DEADLINE };
    let deadline = section.duration("deadline", default, range, problems);
    if deadline <= timeout {
        return (deadline, timeout);
    }
    if !is_set {
        // Oncely's own deadline comes first.
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
    let choices = [
        ("retry", InFlightPolicy::Retry),
        ("wait", InFlightPolicy::Wait),
        ("reject", InFlightPolicy::Reject),
    ];
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
