//! The tables of the file.

use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cell::CellTable;
use super::console::ConsoleTable;
use super::consumer::ConsumerTable;
use super::encryption::EncryptionTable;
use super::events::EventsTable;
use super::gateway::GatewayTable;
use super::mirror::{MirrorTable, RedisTable};
use super::postgres::PostgresTable;
use super::rabbitmq::RabbitTable;
use super::tasks::{AuditTable, DeadLettersTable, GcTable, LogTable, RelayTable, WorkerTable};
use super::traces::TracesTable;

/// Oncely's configuration: every key with its default, its unit and its reason.
/// Copy what you change into oncely.toml (or name another file by --config or ONCELY_CONFIG). A key left out keeps its default, an unknown key
/// is refused. Durations have a unit: "250ms", "30s", "5m", "2h", "7d".
///
/// Precedence: this < oncely.toml < DATABASE_URL, AMQP_URL, REDIS_URL < ONCELY_… (ONCELY_MIRROR__TTL=2h is ttl in `[mirror]`).
/// DATABASE_URL_FILE, AMQP_URL_FILE and REDIS_URL_FILE name a file that holds the URL.
#[derive(Default, Deserialize, Serialize, JsonSchema, Validate)]
#[serde(default, deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub(crate) struct File {
    pub(crate) cell: CellTable,
    #[garde(dive)]
    pub(crate) postgres: PostgresTable,
    #[garde(dive)]
    pub(crate) rabbitmq: RabbitTable,
    pub(crate) redis: RedisTable,
    #[garde(dive)]
    pub(crate) mirror: MirrorTable,
    #[garde(dive)]
    pub(crate) worker: WorkerTable,
    #[garde(dive)]
    pub(crate) relay: RelayTable,
    #[garde(dive)]
    pub(crate) events: EventsTable,
    #[garde(dive)]
    pub(crate) gc: GcTable,
    #[garde(dive)]
    pub(crate) audit: AuditTable,
    #[garde(dive)]
    pub(crate) dead_letters: DeadLettersTable,
    pub(crate) encryption: EncryptionTable,
    pub(crate) log: LogTable,
    #[garde(dive)]
    pub(crate) traces: TracesTable,
    #[garde(dive)]
    pub(crate) console: ConsoleTable,
    #[garde(dive)]
    pub(crate) gateway: GatewayTable,
    /// Any number of consumers.
    #[garde(dive)]
    pub(crate) consumers: Vec<ConsumerTable>,
}
