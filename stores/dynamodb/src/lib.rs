//! A lease store of Oncely in DynamoDB: one item a key, replaced by conditional writes.
//!
//! An item is written only where the version stands that was read; so whether a lease has run out is tested in the same step as the write, and
//! never left to the table's TTL, which may come days late and only removes expired items. A write that the client has tried
//! twice and that had worked the first time fails its condition: it is known by its version.
//!
//! ```no_run
//! # async fn test(config: &aws_sdk_dynamodb::config::Config) -> Result<(), oncely::lease::StoreError> {
//! use oncely::lease::LeaseRunner;
//!
//! let client = aws_sdk_dynamodb::Client::from_conf(config.clone());
//! let runner = LeaseRunner::new(oncely_dynamodb::open(client, "leases").await?);
//! # Ok(())
//! # }
//! ```
//!
//! The table has the partition key `key` (a string) and no sort key. Its TTL attribute is `expires`.

mod date;

use std::time::{Duration, SystemTime};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::SdkError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableOutput;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeyType, ReturnValuesOnConditionCheckFailure, ScalarAttributeType, TableDescription,
};
use oncely::identity::Identity;
use oncely::lease::{Cell, CellStore, Cells, Facts, Failover, ReplaceOutcome, StoreClock, StoreError};
use std::collections::HashMap;
use uuid::Uuid;

use date::ServerDate;

/// Maximum error of the estimated server time: `Date` has whole seconds, and an answer takes time to arrive. Slower answers are ignored.
const CLOCK_ERROR: Duration = Duration::from_secs(1);
/// DynamoDB takes items of 400 KB; the rest is for the names and the other attributes.
const MAX_RECORD: usize = 390_000;

/// A store in a table. See [`open`].
pub type DynamoStore = CellStore<Table>;

/// A table that holds keys.
#[derive(Clone, Debug)]
pub struct Table {
    client: Client,
    name: String,
    date: ServerDate,
}

/// Opens a lease store in a table: checks the table's key schema, and estimates the server's time if the answer is quick enough.
///
/// The steps of a key share the 400 KB of its item: a step's result that does not fit is refused.
///
/// # Errors
/// [`StoreError::Refused`] if the table has another key schema; [`StoreError::Unavailable`] if it can't be reached.
pub async fn open(client: Client, table: impl Into<String>) -> Result<DynamoStore, StoreError> {
    Ok(CellStore::new(Table::open(client, table).await?))
}

impl Table {
    /// Opens a table without a store around it: checks its key schema, and estimates the server's time if the answer is quick
    /// enough.
    ///
    /// # Errors
    /// See [`open`].
    pub async fn open(client: Client, table: impl Into<String>) -> Result<Self, StoreError> {
        let (name, date) = (table.into(), ServerDate::default());
        let described = describe_table(&client, &name, &date).await?;
        let fits = described.table().is_some_and(has_our_key);
        if !fits {
            return Err(StoreError::Refused(format!(
                "the table {name} has another key: its partition key must be \"key\", a string, and it must have no sort key"
            )));
        }
        Ok(Self { client, name, date })
    }
}

/// Queries the table's description; the answer's date sets the clock.
async fn describe_table(
    client: &Client,
    table: &str,
    date: &ServerDate,
) -> Result<DescribeTableOutput, StoreError> {
    let asked = client.describe_table().table_name(table).customize().interceptor(date.clone());
    asked.send().await.map_err(unavailable)
}

/// Returns whether the table has the partition key `key`, a string, and no sort key.
fn has_our_key(table: &TableDescription) -> bool {
    let is_text = table.attribute_definitions().iter().any(|attribute| {
        attribute.attribute_name() == "key" && *attribute.attribute_type() == ScalarAttributeType::S
    });
    matches!(table.key_schema(), [key] if key.attribute_name() == "key" && *key.key_type() == KeyType::Hash)
        && is_text
}

/// Returns the item key of an identity: each part after its length, so that different identities have different keys.
fn item_key(identity: &Identity) -> AttributeValue {
    let parts = [&identity.tenant, &identity.consumer, &identity.key].map(|part| part.as_str());
    AttributeValue::S(parts.map(|part| format!("{}:{part}", part.len())).concat())
}

fn unavailable<E>(error: SdkError<E>) -> StoreError
where
    E: std::error::Error + Send + Sync + 'static,
{
    StoreError::unavailable(anyhow::Error::from(error))
}

/// Parses an item.
fn parse_cell(item: &HashMap<String, AttributeValue>) -> Result<Cell, StoreError> {
    let text = |name: &str| match item.get(name) {
        Some(AttributeValue::S(text)) => Ok(text),
        _ => Err(StoreError::Damaged(format!("the attribute {name} is no string"))),
    };
    let version = Uuid::parse_str(text("version")?)
        .map_err(|_| StoreError::Damaged("the attribute version is no UUID".to_owned()))?;
    let record = serde_json::from_str(text("record")?)
        .map_err(|_| StoreError::Damaged("the attribute record is none".to_owned()))?;
    Ok(Cell { version, record })
}

impl Cells for Table {
    fn facts(&self) -> Facts {
        Facts { failover: Failover::Keeps, clock: StoreClock::Estimated(CLOCK_ERROR) }
    }

    async fn now(&self) -> Result<i64, StoreError> {
        if let Some(now) = self.date.now(SystemTime::now()) {
            return Ok(now);
        }
        // No answer has arrived within [`CLOCK_ERROR`] yet, not even the first.
        describe_table(&self.client, &self.name, &self.date).await?;
        let late = || anyhow::anyhow!("DynamoDB has not told in time what time it is");
        self.date.now(SystemTime::now()).ok_or_else(|| StoreError::unavailable(late()))
    }

    async fn read(&self, identity: &Identity) -> Result<Option<Cell>, StoreError> {
        let get =
            self.client.get_item().table_name(&self.name).key("key", item_key(identity)).consistent_read(true);
        let got = get.customize().interceptor(self.date.clone()).send().await.map_err(unavailable)?;
        got.item().map(parse_cell).transpose()
    }

    async fn replace(
        &self,
        identity: &Identity,
        was: Option<Uuid>,
        new: &Cell,
    ) -> Result<ReplaceOutcome, StoreError> {
        let record = serde_json::to_string(&new.record).map_err(StoreError::unavailable)?;
        if record.len() > MAX_RECORD {
            return Err(StoreError::Refused(format!(
                "the key's record has {} bytes, and {MAX_RECORD} fit: keep what is large elsewhere, and its id here",
                record.len()
            )));
        }
        // Rounded up, so that the TTL never deletes an item early.
        let expires = new.record.expires_at() / 1_000_000 + 1;
        let put = self
            .client
            .put_item()
            .table_name(&self.name)
            .item("key", item_key(identity))
            .item("version", AttributeValue::S(new.version.to_string()))
            .item("record", AttributeValue::S(record))
            .item("expires", AttributeValue::N(expires.to_string()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let put = match was {
            None => put
                .condition_expression("attribute_not_exists(#key)")
                .expression_attribute_names("#key", "key"),
            Some(version) => put
                .condition_expression("#version = :was")
                .expression_attribute_names("#version", "version")
                .expression_attribute_values(":was", AttributeValue::S(version.to_string())),
        };
        match put.customize().interceptor(self.date.clone()).send().await {
            Ok(_) => Ok(ReplaceOutcome::Done),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    Ok(ReplaceOutcome::Other(failed.item().map(parse_cell).transpose()?))
                }
                _ => Err(unavailable(error)),
            },
        }
    }
}
