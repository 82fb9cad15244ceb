//! Tenants that are divided over databases, and one that moves from one to another: `examples/separate`.

use std::path::Path;
use std::process::Output;

use lapin::ExchangeKind;
use serde_json::Value;

use crate::support::{World, message, program};

const MESSAGES: usize = 200;

fn example(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/separate").join(name)
}

/// Creates a database that serves some tenants, with a consumer of the same name as all others.
async fn serving(tenants: &str) -> World {
    let mut world = World::new().await;
    let shop = std::fs::read_to_string(example("shop.sql")).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(shop)).execute(&mut world.sql).await.unwrap();
    let insert = format!("insert into shop.tenants select unnest('{tenants}'::text[])");
    sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut world.sql).await.unwrap();
    world.open_schema("shop").await;
    world.consumer("payments", "handler = { function = \"shop.pay\" }");
    world.apply_topology().await;
    world
}

async fn move_tenant(tenant: &str, from: &World, to: &World) -> Output {
    let mut script = tokio::process::Command::new(example("move.sh"));
    script.args([tenant, from.database.url(), to.database.url()]).output().await.unwrap()
}

/// Publishes a tenant's payments from one number to another, to the exchange that divides the tenants.
async fn publish(world: &World, exchange: &str, tenant: &str, numbers: std::ops::Range<usize>) {
    let payments = numbers.map(|number| {
        let key = format!("{tenant}-{number}");
        (tenant.to_owned(), message(tenant, &key), format!("{{\"cents\": {number}}}").into_bytes())
    });
    world.broker.publish_all(exchange, payments.collect()).await.unwrap();
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn a_tenant_moves_with_its_keys_and_is_not_served_where_it_was() {
    let (mut left, mut right) = (serving("{acme, globex}").await, serving("{initech}").await);
    let exchange = left.queue("tenants");
    left.broker.declare_exchange(&exchange, ExchangeKind::Direct).await.unwrap();
    for tenant in ["acme", "globex"] {
        left.broker.bind(&left.queue("payments"), &exchange, tenant).await.unwrap();
    }
    let workers = [left.start_as("worker", "left"), right.start_as("worker", "right")];
    publish(&left, &exchange, "acme", 0..MESSAGES).await;
    publish(&left, &exchange, "globex", 0..MESSAGES).await;
    let paid = "select count(*) from shop.payments where tenant = ";
    left.wait_for(&format!("{paid}'acme'"), MESSAGES as i64).await;

    // The tenant's messages wait in a queue that no process reads yet. Copies come through both.
    let held = right.queue("moved");
    let known = format!("queue = {:?}", right.queue("payments"));
    right.reconfigure(&known, &format!("queues = [{:?}, {held:?}]", right.queue("payments")));
    right.apply_topology().await;
    left.broker.bind(&held, &exchange, "acme").await.unwrap();
    publish(&left, &exchange, "acme", MESSAGES / 2..MESSAGES * 2).await;
    left.broker.unbind(&left.queue("payments"), &exchange, "acme").await.unwrap();
    publish(&left, &exchange, "acme", MESSAGES..MESSAGES * 3).await;
    left.wait_for_ready(&left.queue("payments"), 0).await;
    left.wait_for(&format!("{paid}'acme'"), MESSAGES as i64 * 2).await;

    // What has begun ends first.
    sqlx::raw_sql(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
         values ('acme', 'payments', 'open', 'IN_PROGRESS', 1, now())",
    )
    .execute(&mut left.sql)
    .await
    .unwrap();
    let refused = move_tenant("acme", &left, &right).await;
    assert_eq!(refused.status.code(), Some(1), "{}", told(&refused));
    assert!(told(&refused).contains("keys in progress|1"), "{}", told(&refused));
    assert_eq!(right.count(&format!("{paid}'acme'")).await, 0, "nothing is copied");
    sqlx::raw_sql("delete from oncely.idempotency_keys where key = 'open'")
        .execute(&mut left.sql)
        .await
        .unwrap();

    let moved = move_tenant("acme", &left, &right).await;
    assert!(moved.status.success(), "{}", told(&moved));
    let again = move_tenant("acme", &left, &right).await;
    assert!(!again.status.success() && told(&again).contains("duplicate key"), "{}", told(&again));

    let [of_left, of_right] = workers;
    right.stop(of_right).await;
    let of_right = right.start_as("worker", "right");
    right.wait_for_ready(&held, 0).await;
    right.wait_for(&format!("{paid}'acme'"), MESSAGES as i64 * 3).await;
    let doubled =
        "select count(*) from (select 1 from shop.payments group by tenant, id having count(*) > 1) as d";
    assert_eq!(right.count(doubled).await, 0);
    let compared = "select count(*) from oncely.idempotency_keys where tenant = 'acme' and fingerprint is not null and response is not null";
    assert_eq!(right.count(compared).await, MESSAGES as i64 * 3, "keys have fingerprints and responses");

    // A wrong binding: copies are known, and new messages are refused.
    left.broker.bind(&left.queue("payments"), &exchange, "acme").await.unwrap();
    publish(&left, &exchange, "acme", 0..MESSAGES).await;
    publish(&left, &exchange, "acme", MESSAGES * 3..MESSAGES * 3 + 2).await;
    publish(&left, &exchange, "globex", MESSAGES..MESSAGES + 1).await;
    left.wait_for("select count(*) from oncely.dead_letters where reason = 'handler_rejected'", 2).await;
    left.wait_for(&format!("{paid}'globex'"), MESSAGES as i64 + 1).await;
    left.wait_for_ready(&left.queue("payments"), 0).await;
    assert_eq!(left.count(&format!("{paid}'acme'")).await, MESSAGES as i64 * 2, "as it was left");
    right.wait_for(&format!("{paid}'acme'"), MESSAGES as i64 * 3 + 2).await;
    assert_eq!(right.count(doubled).await, 0);

    // Both in one call: each with its name, and the worst of both decides.
    for world in [&mut left, &mut right] {
        let urls = format!(
            "[postgres]\nurl = {:?}\n[rabbitmq]\nurl = {:?}",
            world.database.url(),
            world.urls.rabbitmq
        );
        world.configure(&urls);
    }
    let files = [&left, &right].map(|world| world.file().display().to_string());
    let mut status = tokio::process::Command::new(program("oncely"));
    status.args(["--config", &files[0], "status", "--json", "--also", &files[1]]);
    let both = status.env_remove("DATABASE_URL").env_remove("AMQP_URL").output().await.unwrap();
    let lines: Vec<Value> = String::from_utf8_lossy(&both.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let names: Vec<&str> = lines.iter().map(|line| line["configuration"].as_str().unwrap()).collect();
    assert_eq!(names, files, "{}", told(&both));
    let codes: Vec<i64> = lines.iter().map(|line| line["exit"].as_i64().unwrap()).collect();
    assert!(
        codes[0] > 0 && both.status.code() == Some(codes[0] as i32),
        "dead letters wait on the left: {codes:?}"
    );
    // One that the environment makes the same database.
    let output = left.oncely(&["status", "--also", &files[1]]).await;
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    assert!(told(&output).contains("name the same database"), "{}", told(&output));

    left.stop(of_left).await;
    right.stop(of_right).await;
}
