//! What a message asks DynamoDB, for `cargo xtask bench lease_dynamodb_cost`: `requests TABLE first|again|article COUNT`, at `DYNAMODB_URL`.

use std::time::Duration;

use anyhow::Context as _;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use oncely::identity::{Identity, IdentityPart};
use oncely::lease::{Claim, ClaimOutcome, LeaseId, LeaseStore as _, fingerprint};
use serde_json::json;

const RESPONSE: &str = r#"{"success":true,"transactionId":"txn_123"}"#;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [table, phase, count] = &arguments[..] else {
        anyhow::bail!("requests TABLE first|again|article COUNT")
    };
    let count: u64 = count.parse()?;
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(std::env::var("DYNAMODB_URL").context("DYNAMODB_URL is not set")?)
        .build();
    let client = Client::from_conf(config);
    match phase.as_str() {
        "first" => {
            create_table(&client, table).await?;
            request_as_store(&client, table, count, false).await
        }
        "again" => request_as_store(&client, table, count, true).await,
        "article" => {
            create_table(&client, table).await?;
            request_as_article(&client, table, count).await
        }
        other => anyhow::bail!("no phase {other}"),
    }
}

async fn create_table(client: &Client, table: &str) -> anyhow::Result<()> {
    let text = ScalarAttributeType::S;
    client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder().attribute_name("key").attribute_type(text).build()?,
        )
        .key_schema(KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build()?)
        .send()
        .await?;
    Ok(())
}

/// Claims keys by our store and completes them; `again`: all are known to be done.
async fn request_as_store(client: &Client, table: &str, count: u64, again: bool) -> anyhow::Result<()> {
    let store = oncely_dynamodb::open(client.clone(), table).await?;
    for number in 0..count {
        let part = |text: &str| IdentityPart::new(text.as_bytes());
        let key = format!("550e8400-e29b-41d4-a716-{number:012}");
        let identity = Identity { tenant: part("acme")?, consumer: part("payments")?, key: part(&key)? };
        let owner = format!("worker-0123456789abcdef-{number:032x}");
        let claim = Claim {
            identity: &identity,
            fingerprint: fingerprint(b"{}"),
            owner: &owner,
            lease: Duration::from_secs(30),
            max_run: Duration::from_secs(600),
            retention: Duration::from_secs(86_400),
            max_crashes: 3,
        };
        match store.claim(&claim).await? {
            ClaimOutcome::Granted(grant) if !again => {
                let held = LeaseId { identity: identity.clone(), token: grant.token };
                store.complete(&held, Some(&serde_json::from_str(RESPONSE)?)).await?;
            }
            ClaimOutcome::Done(Some(_)) if again => {}
            other => anyhow::bail!("{other:?}"),
        }
    }
    check_item_sizes(client, table).await
}

/// Sends the requests of "Idempotent Serverless Handlers via DynamoDB Conditional Writes" for each key: GetItem, PutItem under a condition,
/// UpdateItem.
async fn request_as_article(client: &Client, table: &str, count: u64) -> anyhow::Result<()> {
    let text = |text: &str| AttributeValue::S(text.to_owned());
    let expiry = AttributeValue::N("1800000000".to_owned());
    for number in 0..count {
        let key = text(&format!("550e8400-e29b-41d4-a716-{number:012}"));
        let found = client.get_item().table_name(table).key("key", key.clone()).send().await?;
        anyhow::ensure!(found.item().is_none(), "it is there");
        client
            .put_item()
            .table_name(table)
            .item("key", key.clone())
            .item("status", text("IN_PROGRESS"))
            .item("expiry", expiry.clone())
            .condition_expression("attribute_not_exists(#key) OR #expiry < :now")
            .expression_attribute_names("#key", "key")
            .expression_attribute_names("#expiry", "expiry")
            .expression_attribute_values(":now", AttributeValue::N("1700000000".to_owned()))
            .send()
            .await?;
        client
            .update_item()
            .table_name(table)
            .key("key", key)
            .update_expression("SET #status = :status, #data = :data, #expiry = :expiry")
            .expression_attribute_names("#status", "status")
            .expression_attribute_names("#data", "responseData")
            .expression_attribute_names("#expiry", "expiry")
            .expression_attribute_values(":status", text("COMPLETED"))
            .expression_attribute_values(":data", text(&json!(RESPONSE).to_string()))
            .expression_attribute_values(":expiry", expiry.clone())
            .send()
            .await?;
    }
    check_item_sizes(client, table).await
}

/// Checks that no item is over 1 KB: a write is one unit up to 1 KB, a read up to 4 KB.
async fn check_item_sizes(client: &Client, table: &str) -> anyhow::Result<()> {
    let found = client.scan().table_name(table).send().await?;
    let bytes = |value: &AttributeValue| match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.len(),
        _ => 1_024,
    };
    for item in found.items() {
        let bytes: usize = item.iter().map(|(name, value)| name.len() + bytes(value)).sum();
        anyhow::ensure!(bytes <= 1_024, "an item of {bytes} bytes");
    }
    Ok(())
}
