//! The store against moto, whose address `cargo xtask dynamodb` passes on: one thread, so what it shows is the store, and not what DynamoDB does
//! with two at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{BehaviorVersion, Config, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use oncely::identity::{Identity, IdentityPart};
use oncely::lease::conformance::{self, Clock};
use oncely::lease::{
    Cell, CellStore, Cells, Claim, Facts, LeaseStore as _, ReplaceOutcome, StoreError, fingerprint,
};
use oncely_dynamodb::Table;
use uuid::Uuid;

fn client() -> Client {
    let endpoint = std::env::var("DYNAMODB_URL").expect("DYNAMODB_URL: cargo xtask dynamodb sets it");
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(endpoint)
        .build();
    Client::from_conf(config)
}

async fn table(client: &Client, partition: &str) -> String {
    let name = format!("leases-{}", Uuid::new_v4());
    client
        .create_table()
        .table_name(&name)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name(partition)
                .attribute_type(ScalarAttributeType::S)
                .build()
                .unwrap(),
        )
        .key_schema(
            KeySchemaElement::builder().attribute_name(partition).key_type(KeyType::Hash).build().unwrap(),
        )
        .send()
        .await
        .unwrap();
    name
}

/// A table whose server's clock is ahead.
#[derive(Clone)]
struct Ahead {
    table: Table,
    micros: Arc<AtomicI64>,
}

impl Clock for Ahead {
    async fn advance(&self, time: Duration) {
        self.micros.fetch_add(i64::try_from(time.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

impl Cells for Ahead {
    fn facts(&self) -> Facts {
        self.table.facts()
    }

    async fn now(&self) -> Result<i64, StoreError> {
        Ok(self.table.now().await? + self.micros.load(Ordering::Relaxed))
    }

    async fn read(&self, identity: &Identity) -> Result<Option<Cell>, StoreError> {
        self.table.read(identity).await
    }

    async fn replace(
        &self,
        identity: &Identity,
        was: Option<Uuid>,
        cell: &Cell,
    ) -> Result<ReplaceOutcome, StoreError> {
        self.table.replace(identity, was, cell).await
    }
}

async fn ahead() -> Ahead {
    let client = client();
    let name = table(&client, "key").await;
    Ahead { table: Table::open(client, name).await.unwrap(), micros: Arc::default() }
}

#[tokio::test]
async fn the_store_in_dynamodb_conforms() {
    let clock = ahead().await;
    let broken = conformance::all(&CellStore::new(clock.clone()), &clock).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

fn order() -> Identity {
    let part = |text: &str| IdentityPart::new(text.as_bytes()).unwrap();
    Identity { tenant: part("acme"), consumer: part("payments"), key: part("order 1") }
}

/// The cell of a key that is held.
async fn held(cells: &Ahead) -> Cell {
    let identity = order();
    let claim = Claim {
        identity: &identity,
        fingerprint: fingerprint(b"{}"),
        owner: "first",
        lease: Duration::from_secs(30),
        max_run: Duration::from_secs(600),
        retention: Duration::from_secs(86_400),
        max_crashes: 3,
    };
    CellStore::new(cells.clone()).claim(&claim).await.unwrap();
    cells.read(&identity).await.unwrap().unwrap()
}

/// The client tries a write twice whose answer it did not get: the second one fails its condition, and says who wrote.
#[tokio::test]
async fn a_write_that_was_tried_twice_is_known_as_ones_own() {
    let cells = ahead().await;
    let (identity, stored) = (order(), held(&cells).await);
    let mine = Cell { version: Uuid::new_v4(), record: stored.record.clone() };
    assert_eq!(cells.replace(&identity, Some(stored.version), &mine).await.unwrap(), ReplaceOutcome::Done);
    assert_eq!(
        cells.replace(&identity, Some(stored.version), &mine).await.unwrap(),
        ReplaceOutcome::Other(Some(mine.clone()))
    );
    assert_eq!(cells.replace(&identity, None, &stored).await.unwrap(), ReplaceOutcome::Other(Some(mine)));
}

#[tokio::test]
async fn one_of_two_that_have_seen_the_same_takes_over() {
    let cells = ahead().await;
    let (identity, stored) = (order(), held(&cells).await);
    let [one, other] = [1, 2].map(|_| Cell { version: Uuid::new_v4(), record: stored.record.clone() });
    assert_eq!(cells.replace(&identity, Some(stored.version), &one).await.unwrap(), ReplaceOutcome::Done);
    let late = cells.replace(&identity, Some(stored.version), &other).await.unwrap();
    assert_eq!(late, ReplaceOutcome::Other(Some(one.clone())));
    assert_eq!(cells.read(&identity).await.unwrap(), Some(one));
}

/// DynamoDB removes what is beyond it, some day: nothing that somebody may still ask for.
#[tokio::test]
async fn the_tables_ttl_is_the_retention_and_never_the_lease() {
    let client = client();
    let name = table(&client, "key").await;
    let cells = Ahead { table: Table::open(client.clone(), &name).await.unwrap(), micros: Arc::default() };
    held(&cells).await;
    let found = client.scan().table_name(&name).send().await.unwrap();
    let [item] = found.items() else { panic!("{found:?}") };
    let expires: i64 = item["expires"].as_n().unwrap().parse().unwrap();
    let left = expires - cells.now().await.unwrap() / 1_000_000;
    assert!((86_395..=86_401).contains(&left), "{left} s");
}

#[tokio::test]
async fn a_table_with_another_key_is_refused() {
    let client = client();
    let name = table(&client, "id").await;
    let opened = Table::open(client, name).await;
    assert!(matches!(&opened, Err(StoreError::Refused(why)) if why.contains("partition key")), "{opened:?}");
}
