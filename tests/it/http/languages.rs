//! The middlewares of the examples in Python and Node: killed in the middle of a request, and asked again.

use std::path::{Path, PathBuf};

use futures::future::join_all;
use serde_json::Value;
use testbed::{Process, Scratch, eventually};

use super::{Ask, Client};
use crate::support::{World, program};

const PAYMENTS: &str = "select count(*) from shop.payments";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn target() -> PathBuf {
    let folder = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    std::fs::canonicalize(folder).unwrap()
}

async fn pays_once(command: &Path, script: &Path) {
    let mut world = World::new().await;
    let schema = std::fs::read_to_string(root().join("examples/shop.sql")).unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(schema)).execute(&mut world.sql).await.unwrap();
    let logs = Scratch::new("middleware").unwrap();
    let port = testbed::free_port().unwrap().to_string();
    let client = Client::new(([127, 0, 0, 1], port.parse().unwrap()).into());
    let start = async |world: &World, name: &str| {
        let environment =
            [("DATABASE_URL", world.database.url()), ("PORT", &port), ("PYTHONDONTWRITEBYTECODE", "1")];
        let log = logs.path().join(format!("{name}.log"));
        let script = script.display().to_string();
        let process = Process::start(command, &[&script], &environment, &log).unwrap();
        eventually("it listens", || async {
            let connected = tokio::net::TcpStream::connect(client.address()).await;
            connected.map(drop).map_err(|error| anyhow::anyhow!("{error}: {}", process.output()))
        })
        .await
        .unwrap();
        process
    };
    let pay = |key: &str, body: &str| {
        let ask = Ask::pay(key, body).to("POST", "/payments");
        ask.header("Content-Type", "application/json")
    };
    let mut first = start(&world, "first").await;
    // In the middle of its transaction.
    let mut gate = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table shop.payments in exclusive mode").execute(&mut gate).await.unwrap();
    let order = pay("k1", r#"{"order": "order-1", "cents": 500}"#);
    let torn = tokio::spawn({
        let order = order.clone();
        async move { client.send(&order.bytes()).await }
    });
    let stuck = "select count(*) from pg_locks where not granted and relation = 'shop.payments'::regclass";
    world.wait_for(stuck, 1).await;
    world.kill(&mut first);
    assert!(torn.await.unwrap().is_err());
    sqlx::raw_sql("commit").execute(&mut gate).await.unwrap();
    let mut second = start(&world, "second").await;
    // Until PostgreSQL has noticed that the first one is gone, its key is at work.
    let done = eventually("it is paid", || async {
        let reply = client.send(&order.bytes()).await?;
        anyhow::ensure!(reply.status == 201, "{reply:?}: {}", second.output());
        Ok(reply)
    })
    .await
    .unwrap();
    assert_eq!(done.header("location").as_deref(), Some("/payments/order-1"));
    // Again, from another process; and many at once.
    world.kill(&mut second);
    let third = start(&world, "third").await;
    for reply in join_all((0..8).map(|_| client.ask(&order))).await {
        assert_eq!((reply.status, reply.is_replayed(), &reply.body), (201, true, &done.body));
        assert_eq!(reply.header("location"), done.header("location"));
    }
    let twins = pay("k2", r#"{"order": "order-2", "cents": 7}"#);
    let replies = join_all((0..8).map(|_| client.ask(&twins))).await;
    assert!(
        replies.iter().all(|reply| (reply.status, &reply.body) == (201, &replies[0].body)),
        "{replies:?}"
    );
    assert_eq!(world.count(PAYMENTS).await, 2);
    // Another request, a refusal that is final, and a failure that is not.
    assert_eq!(client.ask(&pay("k1", r#"{"order": "order-1", "cents": 501}"#)).await.status, 422);
    let refused = pay("k3", r#"{"order": "order-3", "cents": "many"}"#);
    let (no, again) = (client.ask(&refused).await, client.ask(&refused).await);
    assert_eq!((no.status, no.is_replayed(), again.is_replayed(), &again.body), (422, false, true, &no.body));
    assert!(serde_json::from_slice::<Value>(&no.body).unwrap()["error"].is_string(), "{no:?}");
    // What is no JSON is the client's mistake.
    for (number, body) in ["{", "[]", "1", "\u{0}"].into_iter().enumerate() {
        for path in ["/payments", "/payments/bulk"] {
            let key = format!("bad-{number}-{}", path.len());
            let told = client.ask(&pay(&key, body).to("POST", path)).await;
            assert!(matches!(told.status, 400 | 422), "{path} {body}: {told:?}");
        }
    }
    let bad = client.ask(&pay("k4", "{")).await;
    assert_eq!(bad.status, 400, "{bad:?}");
    sqlx::query("delete from oncely.idempotency_keys where key like 'bad%' or key = 'k4'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    for _ in 0..2 {
        // Not a text that PostgreSQL holds.
        let failed = client.ask(&pay("k4", r#"{"order": "a\u0000", "cents": 1}"#)).await;
        assert!(failed.status >= 500 && !failed.is_replayed(), "{failed:?}");
    }
    assert_eq!(client.ask(&Ask::bare("{}").to("POST", "/payments")).await.status, 400, "no key");
    assert_eq!(world.count(PAYMENTS).await, 2);
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys").await, 3);
    // Another user who has come by a key.
    let stranger = order.clone().header("Authorization", "Bearer of-another");
    let told = client.ask(&stranger).await;
    assert_eq!((told.status, told.is_replayed()), (422, false), "{told:?}");
    // An answer in pieces; one that can't be stored; a request that nobody would keep.
    let bulk = |key: &str, orders: usize| {
        let orders: Vec<String> = (0..orders).map(|number| format!("{key}-{number}")).collect();
        pay(key, &serde_json::json!({ "orders": orders }).to_string()).to("POST", "/payments/bulk")
    };
    let (pieces, again) = (client.ask(&bulk("k5", 3)).await, client.ask(&bulk("k5", 3)).await);
    assert_eq!((pieces.status, again.is_replayed(), &again.body), (201, true, &pieces.body), "{pieces:?}");
    assert_eq!(pieces.body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(), 3);
    let large = client.ask(&bulk("k6", 3_000)).await;
    assert_eq!((large.status, large.header("retry-after")), (500, None), "{large:?}");
    let huge = format!(r#"{{"orders": ["{}"]}}"#, "x".repeat(2_000_000));
    assert_eq!(client.ask(&pay("k7", &huge).to("POST", "/payments/bulk")).await.status, 413);
    assert_eq!(world.count(PAYMENTS).await, 5);
    drop(third);
}

#[tokio::test]
async fn the_middleware_for_fastapi_is_killed_and_pays_once() {
    let folder = root().join("examples/python");
    let python = testbed::python(&folder, &target().join("examples/python")).unwrap();
    pays_once(&python, &folder.join("http_door.py")).await;
}

#[tokio::test]
async fn the_middleware_for_express_is_killed_and_pays_once() {
    let folder = target().join("examples/node");
    let node = testbed::node(&root().join("examples/node"), &folder).unwrap();
    pays_once(&node, &folder.join("http_door.js")).await;
}
