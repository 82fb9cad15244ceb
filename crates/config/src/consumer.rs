//! `[[consumers]]`: queues, identity and handler of a consumer.

use std::collections::BTreeMap;
use std::time::Duration;

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problems;
use super::consumer_handler::{HandlerTable, Handlers};
use super::consumer_source::{self, SourceTable};
use super::events::check_rising;
use super::mirror::PrecheckWord;
use super::queue::{self, QueueArgument, QueueBinding};
use super::values::{DAY, HOUR, Length, MILLISECOND, MINUTE, SECOND};
use oncely_core::decide::{OnConflict, PrecheckMode};
use oncely_core::extract::Source;
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::identity::IdentityPart;
use oncely_core::retry::RetryPolicy;
use oncely_handler::{HttpEndpoint, SqlFunction};

/// The kind of queue that `oncely topology apply` declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueType {
    /// Replicated; RabbitMQ's recommendation.
    Quorum,
    /// On one node.
    Classic,
}

impl QueueType {
    /// Returns the value of `x-queue-type`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// Treatment of responses over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LargeResponse {
    /// Dead-letters the message without any of its effect.
    Refuse,
    /// Stores the response; PostgreSQL compresses values over 2 kB.
    Compress,
}

/// Whether a consumer's messages take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// Messages take effect.
    Consume,
    /// Reads a copy of each message of another consumer from its own queue, and runs nothing.
    Observe,
}

/// Suffix of the names of an observing consumer and its queues: its claims must never count as processed.
pub const OBSERVER_SUFFIX: &str = ".observe";

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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
        LeaseTable::default().into()
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

/// Maximum size in bytes of a response: a worker has those of a batch several times in memory (oncely.response_texts).
const MAX_RESPONSE_BYTES: u32 = 4 << 20;

/// RabbitMQ's default consumer timeout: a delivery that is not settled by then is redelivered.
const CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

impl ConsumerSettings {
    /// Returns the maximum age of a copy of a message at its last redelivery.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        self.redelivery_horizon.max(self.retry.horizon() + CONSUMER_TIMEOUT)
    }

    /// Returns the maximum size in bytes of a response as JSON. Also a compressed one is in memory before it is stored.
    #[must_use]
    pub fn largest_response(&self) -> u32 {
        match self.on_large_response {
            LargeResponse::Refuse => self.response_limit,
            LargeResponse::Compress => MAX_RESPONSE_BYTES,
        }
    }

    /// Returns whether the consumer only observes.
    #[must_use]
    pub fn is_observer(&self) -> bool {
        self.mode == Mode::Observe
    }
}

#[derive(Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct ConsumerTable {
    /// Part of the identity: choose it once. It stays when queues are renamed or split.
    #[schemars(extend("x-example" = "payments", "x-required" = true))]
    name: Option<String>,
    /// Queue that it reads.
    #[schemars(extend("x-example" = "payments", "x-required" = true))]
    queue: Option<String>,
    /// Several queues that it reads, in place of queue.
    #[schemars(extend("x-example" = ["payments-1", "payments-2"]))]
    queues: Option<Vec<String>>,
    /// "observe": beside the consumer that you have, before Oncely takes over. It reads a queue of its own, payments.observe, which `oncely topology apply`
    /// binds as payments is bound (it asks rabbitmq.management), runs nothing, and counts the messages that it would have stopped (`oncely adopt report`).
    /// Its keys are those of a consumer payments.observe.
    mode: Mode,
    /// Queue that `oncely topology apply` declares: "quorum" (replicated) or "classic".
    queue_type: QueueType,
    /// Workers and `oncely check` refuse an existing queue that differs from its declaration: a stream, for one, forgets messages that were not
    /// acknowledged. false: its owner declares it, and sees to it that it is durable, classic or quorum, not exclusive, not auto-delete, and that the
    /// messages that it drops go to its .dlx.
    declare: bool,
    /// Further arguments of its declaration, like { x-max-priority = 10 }.
    queue_arguments: BTreeMap<String, QueueArgument>,
    /// Its bindings, like [{ exchange = "orders", routing_key = "order.*" }]: `oncely topology apply` binds it. The exchanges are yours to declare.
    bindings: Vec<QueueBinding>,
    /// Place of the tenant, where you trust it:
    /// * "user_id": the publisher's RabbitMQ user, checked by the broker
    /// * "queue": the queue's name
    /// * { header = "x-tenant-id" }: text, or an integer in decimal
    /// * { routing_key = 2 }: the second word
    /// * { json_pointer = "/shop/id" }: RFC 6901 into the JSON body: text, or an integer in decimal
    /// * { property = "app_id" }: message_id, correlation_id, user_id, app_id, type
    /// * { fixed = "acme" }: the same for all
    #[schemars(extend("x-example" = { "header": "x-tenant-id" }, "x-required" = true))]
    tenant: Option<SourceTable>,
    /// Place of the message's key: the same places, or "body_hash" (SHA-256 of the body). 1 to 255 bytes of UTF-8 without NUL, compared byte for byte.
    #[schemars(extend("x-example" = { "property": "message_id" }, "x-required" = true))]
    key: Option<SourceTable>,
    /// Part of the message that is compared when a key comes back: "body" (the exact bytes), "canonical_json" (white space and the order of fields don't
    /// count), { json_pointers = ["/amount"] } (only these values), "none". After a change the key alone decides about keys that were stored before.
    fingerprint: FingerprintTable,
    /// Treatment of a key that comes back with another payload: "dead_letter" it as key_conflict, or take it for a "duplicate".
    on_conflict: ConflictWord,
    /// The SQL function that does the work, called inside the transaction:
    /// * app.capture_payment(oncely.message) returns jsonb
    /// * app.capture_payments(oncely.message[]) returns setof oncely.result, with batch = true: one row per message
    ///
    /// json: "optional" (payload is null where the body is not JSON), "required" (such a message is dead-lettered), "off".
    /// Or an endpoint that each message is posted to, under a lease (docs/src/how-to/http-handler.md): `{ http = "https://payments.internal/charges",
    /// repeat = { within = "24h" }, timeout = "30s", headers = {}, token_file = "/run/secrets/payments", tls = {}, allow_plaintext = false }`. repeat is the
    /// rule for an earlier call that may have happened, and has no default: "always", "never" or { within = "24h" }. timeout: of a call; longer than that,
    /// it is unknown whether it happened. token_file: a bearer token, read for each call. tls: as in `[postgres]`.
    #[schemars(extend("x-example" = { "function": "app.capture_payment", "batch": false, "json": "optional" }, "x-shown" = true))]
    #[garde(dive)]
    handler: Option<HandlerTable>,
    /// Time for which a key is remembered after it took effect. A copy that comes later runs again. A worker that starts with it tells the database, where
    /// the longest one counts, for the relay too; `oncely retention set payments 3d` shortens it.
    #[garde(range(min = SECOND, max = DAY.times(3_650)))]
    retention: Length,
    /// Age of the oldest copy that may still come: its time in the queue, in retries, in the dead-letter queue until an operator moves it back. retention
    /// must not be shorter.
    #[garde(range(min = SECOND, max = DAY.times(3_650)))]
    redelivery_horizon: Length,
    /// After a failed run the message comes back after these delays (the last one repeats; a delay beyond max_attempts - 1 is never taken), each a queue at
    /// the broker; after max_attempts runs it is dead-lettered as attempts_exhausted. A redelivered message that was at work in max_crashes processes when
    /// they died is dead-lettered as crash.
    #[schemars(extend("x-default" = { "delays": ["1s", "10s", "1m", "10m", "1h"], "max_attempts": 6, "max_crashes": 3 }))]
    #[garde(dive)]
    retry: RetryTable,
    /// Longest run of the handler (a batch for a SQL function or a batch handler, a message for a handler in Rust); then PostgreSQL cancels the statement
    /// that it waits for, and the run counts as failed. By default 30s, and for a SQL function at most statement_timeout.
    #[schemars(extend("x-example" = "30s"))]
    #[garde(range(min = MILLISECOND.times(100), max = MINUTE.times(15)))]
    deadline: Option<Length>,
    /// For a handler that runs under leases (`http`, or in Rust by `Worker::leased_handler`): time, for which a key is held from its claim or renewal on (it
    /// is renewed every third of that); the longest run, which must fit twice into the broker's consumer_timeout, with two minutes to spare; and the number of
    /// handlers at work at the same time, in place of batch, lanes and prefetch (an eighth more messages are fetched, at most 64). in_flight: a message with
    /// a key that another run holds waits in a retry queue and spends nothing ("retry"), or in the worker ("wait", also where there are no retry queues), or
    /// is dead-lettered as in_flight ("reject").
    #[garde(dive)]
    lease: LeaseTable,
    /// Largest number of messages in one transaction. A transaction takes the messages that are there; where those are more than 64 and other lanes
    /// are at work, it waits for a full batch until they are done, at most 20 ms. A handler that gets one message at a time gets as many as it does
    /// in about a quarter of a second. 500: twice as many are a tenth faster and take twice as long; the tags of 500 still fit into one page of the
    /// mirror queue.
    #[garde(range(min = 1, max = 4_096))]
    batch: u32,
    /// Concurrent transactions, each with a connection of its own.
    #[garde(range(min = 1, max = 64))]
    lanes: u32,
    /// Largest number of messages delivered and not yet acknowledged, per queue. By default 2 × batch × lanes.
    #[schemars(extend("x-example" = 2000))]
    #[garde(range(min = 1, max = 65_535))]
    prefetch: Option<u32>,
    /// Place in a message of the value that its handler locks: batches run in that order, so that two batches with rows in common don't wait for each
    /// other, and stay large. A source as tenant and key; messages without it come first. For handlers that lock one row.
    #[schemars(extend("x-example" = { "json_pointer": "/sku" }))]
    lock_order: Option<SourceTable>,
    /// true: tenants take turns in its batches, with equal shares, so that one tenant's many messages do not hold up another's few. Only
    /// within the messages that RabbitMQ has sent ahead (prefetch); a tenant's own messages enter the batches in the order of the queue.
    fair: bool,
    /// Bytes (bodies and headers) that its deliveries hold in memory until they are settled; then nothing more is read from RabbitMQ, even if prefetch
    /// allows more. A consumer that stays at this limit for longer than two heartbeats loses its connection, and its unsettled messages come again: lower
    /// prefetch where messages are large and slow.
    #[garde(range(min = 1_048_576, max = 1_073_741_824))]
    buffer: u32,
    /// Largest body in bytes; a larger one is dead-lettered as body_too_large.
    #[garde(range(min = 1, max = 134_217_728))]
    max_body: u32,
    /// Trust in a hit in the mirror; by default as `[mirror]` says.
    #[schemars(extend("x-example" = "auto"))]
    precheck: Option<PrecheckWord>,
    /// true sends the handler's response to the queue that a message names in reply_to, with its correlation_id; a duplicate gets the stored response again,
    /// byte for byte. Off by default: each publisher could then have messages written to any queue that the relay's RabbitMQ user may write to.
    replies: bool,
    /// Largest response in bytes, as JSON as PostgreSQL writes it. It is kept with the key as long as that.
    #[garde(range(min = 1, max = MAX_RESPONSE_BYTES))]
    response_limit: u32,
    /// Treatment of a larger one: "refuse" (the message is dead-lettered as handler_rejected, nothing of its effect stays) or "compress" (stored up to
    /// 4 MiB; PostgreSQL compresses values over 2 kB).
    on_large_response: LargeResponse,
    /// true stores responses, and the results of steps under leases, encrypted with the first of `[encryption]` keys; an encrypted one takes a third more. Not
    /// where a SQL function does the work, nor with replies: there the database has to read them. Clients of the SQL protocol that share the consumer's keys
    /// get the ciphertext; the reason of a refusal is stored as plain text.
    encrypt_responses: bool,
}

impl Default for ConsumerTable {
    fn default() -> Self {
        Self {
            name: None,
            queue: None,
            queues: None,
            mode: Mode::Consume,
            queue_type: QueueType::Quorum,
            declare: true,
            queue_arguments: BTreeMap::new(),
            bindings: Vec::new(),
            tenant: None,
            key: None,
            fingerprint: FingerprintTable::Body,
            on_conflict: ConflictWord::DeadLetter,
            handler: None,
            retention: DAY.times(7),
            redelivery_horizon: DAY,
            retry: RetryTable::default(),
            deadline: None,
            lease: LeaseTable::default(),
            batch: 500,
            lanes: 2,
            prefetch: None,
            lock_order: None,
            fair: false,
            buffer: 64 << 20,
            max_body: 16 << 20,
            precheck: None,
            replies: false,
            response_limit: 64 << 10,
            on_large_response: LargeResponse::Refuse,
            encrypt_responses: false,
        }
    }
}

/// Part of a message that is compared.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(extend("x-kind" = "text or table", "x-advice" = FINGERPRINT_ADVICE))]
enum FingerprintTable {
    Body,
    CanonicalJson,
    None,
    JsonPointers(Vec<String>),
}

const FINGERPRINT_ADVICE: &str =
    "must be \"body\", \"canonical_json\", \"none\" or { json_pointers = [\"/amount\"] }";

/// Treatment of another payload under a known key.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ConflictWord {
    DeadLetter,
    Duplicate,
}

#[derive(Clone, Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
struct RetryTable {
    #[garde(inner(range(min = MILLISECOND, max = DAY.times(7))))]
    delays: Vec<Length>,
    #[garde(range(min = 1, max = 1_000))]
    max_attempts: Option<u32>,
    #[garde(range(min = 1, max = 1_000))]
    max_crashes: u32,
}

impl Default for RetryTable {
    fn default() -> Self {
        let RetryPolicy { delays, max_crashes, .. } = RetryPolicy::default();
        Self { delays: delays.into_iter().map(Length).collect(), max_attempts: None, max_crashes }
    }
}

#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
struct LeaseTable {
    #[garde(range(min = SECOND.times(5), max = HOUR))]
    time: Length,
    #[garde(range(min = SECOND, max = DAY))]
    max_run: Length,
    #[garde(range(min = 1, max = 16_384))]
    concurrency: u32,
    in_flight: InFlightPolicy,
}

impl Default for LeaseTable {
    fn default() -> Self {
        let (time, max_run) = (SECOND.times(30), MINUTE.times(10));
        Self { time, max_run, concurrency: 32, in_flight: InFlightPolicy::Retry }
    }
}

impl From<LeaseTable> for LeaseSettings {
    fn from(table: LeaseTable) -> Self {
        let LeaseTable { time, max_run, concurrency, in_flight } = table;
        Self { time: time.0, max_run: max_run.0, concurrency, in_flight }
    }
}

/// Checks the name of a consumer; `None` if it is missing or invalid.
fn check_name(name: Option<&str>, place: &str, problems: &mut Problems) -> Option<IdentityPart> {
    if name.is_none() && !problems.has(place) {
        problems.add(place.to_owned(), "is missing: it is part of the identity, so choose it once");
    }
    problems.parse_identity_part(name?, place)
}

/// Default deadline.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(30);

impl ConsumerTable {
    /// Checks the table of a consumer, and converts it. `place`: the table's name. Returns `None` if the name, the queues, or the source of
    /// tenant or key is missing or invalid.
    pub(crate) fn into_settings(
        self,
        place: &str,
        statement: StatementLimit,
        problems: &mut Problems,
    ) -> Option<ConsumerSettings> {
        let at = |key: &str| format!("{place}.{key}");
        let name = check_name(self.name.as_deref(), &at("name"), problems);
        let mut queues = check_queues(self.queue, self.queues, &at("queue"), problems);
        let name = match self.mode {
            Mode::Consume => {
                check_reserved(name.as_ref(), queues.iter().flatten(), place, problems);
                name
            }
            Mode::Observe => {
                queues.iter_mut().flatten().for_each(|queue| queue.push_str(OBSERVER_SUFFIX));
                name.and_then(|name| build_observer_name(&name, place, problems))
            }
        };
        let lease = check_lease(self.lease, place, problems);
        let handlers = self.handler.map(|table| table.into_settings(&at("handler"), lease.max_run, problems));
        let Handlers { function: handler, http } = handlers.unwrap_or_default();
        let (deadline, statement_timeout) =
            check_deadline(self.deadline, handler.is_some(), statement, &at("deadline"), problems);
        check_encryption(
            self.encrypt_responses,
            handler.is_some(),
            self.replies,
            &at("encrypt_responses"),
            problems,
        );
        let default_prefetch = (self.batch * self.lanes).saturating_mul(2).min(u32::from(u16::MAX));
        let tenant = consumer_source::check_required(self.tenant, place, "tenant", problems);
        let key = consumer_source::check_required(self.key, place, "key", problems);
        let settings = ConsumerSettings {
            mode: self.mode,
            queue_type: self.queue_type,
            declare: self.declare,
            queue_arguments: queue::check_arguments(self.queue_arguments, self.declare, place, problems),
            bindings: queue::check_bindings(self.bindings, place, problems),
            fingerprint: check_fingerprint(self.fingerprint, &at("fingerprint"), problems),
            on_conflict: self.on_conflict.into(),
            handler,
            http,
            retention: self.retention.0,
            redelivery_horizon: self.redelivery_horizon.0,
            retry: check_retry(self.retry, &at("retry"), problems),
            deadline,
            statement_timeout,
            batch: self.batch,
            lanes: self.lanes,
            lease,
            prefetch: u16::try_from(self.prefetch.unwrap_or(default_prefetch)).unwrap_or(u16::MAX),
            lock_order: self.lock_order.map(|source| source.into_settings(&at("lock_order"), problems)),
            fair: self.fair,
            buffer: self.buffer,
            max_body: self.max_body,
            precheck: self.precheck.map(PrecheckMode::from),
            replies: self.replies,
            response_limit: self.response_limit,
            on_large_response: self.on_large_response,
            encrypt_responses: self.encrypt_responses,
            name: name?,
            queues: queues?,
            tenant: tenant?,
            key: key?,
        };
        Some(settings)
    }
}

impl From<ConflictWord> for OnConflict {
    fn from(word: ConflictWord) -> Self {
        match word {
            ConflictWord::DeadLetter => Self::DeadLetter,
            ConflictWord::Duplicate => Self::Duplicate,
        }
    }
}

/// Reports encrypted responses that the database would have to read.
fn check_encryption(
    is_encrypted: bool,
    is_function: bool,
    has_replies: bool,
    place: &str,
    problems: &mut Problems,
) {
    if is_encrypted && is_function {
        problems.add(
            place,
            "the database makes a SQL function's response, and would see it: use a handler in Rust or an endpoint",
        );
    }
    if is_encrypted && has_replies {
        problems.add(
            place,
            "replies are made in the database from stored responses, which it can't read then: use one of both",
        );
    }
}

/// Reports names with an observer's suffix: a consumer with such a name would treat observed keys as processed, or an observer's queue as
/// its own.
fn check_reserved<'a>(
    name: Option<&IdentityPart>,
    mut queues: impl Iterator<Item = &'a String>,
    place: &str,
    problems: &mut Problems,
) {
    let message = format!(
        "must not end with {OBSERVER_SUFFIX:?}: such names are those of consumers in mode = \"observe\""
    );
    if name.is_some_and(|name| name.as_str().ends_with(OBSERVER_SUFFIX)) {
        problems.add(format!("{place}.name"), &message);
    }
    if queues.any(|queue| queue.ends_with(OBSERVER_SUFFIX)) {
        problems.add(format!("{place}.queue"), &message);
    }
}

/// Builds the name of a consumer's observer; `None` if it is too long, which is reported.
fn build_observer_name(name: &IdentityPart, place: &str, problems: &mut Problems) -> Option<IdentityPart> {
    let name = IdentityPart::new(format!("{}{OBSERVER_SUFFIX}", name.as_str()).as_bytes());
    let name = name.map_err(|error| {
        let message = format!("with {OBSERVER_SUFFIX:?} behind it (mode = \"observe\") it {error}");
        problems.add(format!("{place}.name"), message);
    });
    name.ok()
}

/// Statement timeout, and whether it is configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementLimit {
    pub(crate) timeout: Duration,
    pub(crate) is_set: bool,
}

/// Checks the deadline; returns it with the statement timeout that a lane's session needs for it: a function is one statement.
fn check_deadline(
    deadline: Option<Length>,
    is_function: bool,
    statement: StatementLimit,
    place: &str,
    problems: &mut Problems,
) -> (Duration, Duration) {
    let StatementLimit { timeout, is_set } = statement;
    // A handler in Rust runs many statements.
    let default = if is_function { DEFAULT_DEADLINE.min(timeout) } else { DEFAULT_DEADLINE };
    let deadline = deadline.map_or(default, Duration::from);
    if deadline <= timeout {
        return (deadline, timeout);
    }
    if !is_set {
        // Oncely's own deadline comes first.
        return (deadline, deadline + SECOND.0);
    }
    if is_function {
        let message = format!(
            "{} is longer than postgres.statement_timeout = {}, which would cut the function off; lengthen that, or leave it out: it follows \
             from the deadline then",
            Length(deadline),
            Length(timeout)
        );
        problems.add(place, message);
    }
    (deadline, timeout)
}

/// Checks the names of the queues, which one of the two settings holds; `None` if they are missing or invalid.
fn check_queues(
    one: Option<String>,
    many: Option<Vec<String>>,
    place: &str,
    problems: &mut Problems,
) -> Option<Vec<String>> {
    let queues = match (one, many) {
        (Some(_), Some(_)) => {
            problems.add(place, "is set, and queues too; use one of them");
            return None;
        }
        (Some(queue), None) => vec![queue],
        (None, Some(queues)) => queues,
        (None, None) => {
            if !problems.has(place) {
                problems.add(place, "is missing");
            }
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

/// Checks the pointers of the policy, and converts it.
fn check_fingerprint(table: FingerprintTable, place: &str, problems: &mut Problems) -> FingerprintPolicy {
    match table {
        FingerprintTable::Body => FingerprintPolicy::Body,
        FingerprintTable::CanonicalJson => FingerprintPolicy::CanonicalJson,
        FingerprintTable::None => FingerprintPolicy::None,
        FingerprintTable::JsonPointers(pointers) => {
            if pointers.is_empty() || pointers.iter().any(|pointer| !pointer.starts_with('/')) {
                problems.add(place, FINGERPRINT_ADVICE);
            }
            FingerprintPolicy::JsonPointers(pointers)
        }
    }
}

/// Checks that a run may be as long as a lease, and converts the table.
fn check_lease(table: LeaseTable, place: &str, problems: &mut Problems) -> LeaseSettings {
    if table.max_run < table.time {
        problems.add(format!("{place}.lease.max_run"), "must not be shorter than lease.time");
    }
    table.into()
}

/// Checks delays and attempts, and converts the table.
fn check_retry(table: RetryTable, place: &str, problems: &mut Problems) -> RetryPolicy {
    let place = format!("{place}.delays");
    let fallback = if table.delays.is_empty() { 1 } else { RetryPolicy::default().max_attempts };
    let max_attempts = table.max_attempts.unwrap_or(fallback);
    if table.delays.is_empty() && max_attempts > 1 {
        problems.add(&place, "is empty, so max_attempts must be 1: without a delay a retry is a hot loop");
    }
    RetryPolicy {
        delays: check_rising(table.delays, &place, problems),
        max_attempts,
        max_crashes: table.max_crashes,
    }
}
