//! The store in Redis.

use oncely::lease::conformance::{self, Clock as _};
use oncely::lease::{
    ClaimOutcome, Failover, LeaseStore as _, RenewOutcome, Repeat, Step, StepStore as _, StoreError,
};
use oncely::redis_store::{RedisSettings, RedisStore};
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use testbed::{Redis, SentinelRedis, eventually};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::clocks::RedisClock;
use super::{LEASE, claim, conforms, hold, identity};

pub(super) async fn connect(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn run(connection: &mut MultiplexedConnection, words: &[&str]) -> redis::Value {
    let mut command = redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(*word);
    }
    command.query_async(connection).await.unwrap()
}

/// Changes the bytes of a string.
async fn change(connection: &mut MultiplexedConnection, place: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut record: Vec<u8> = redis::cmd("GET").arg(place).query_async(connection).await.unwrap();
    change(&mut record);
    redis::cmd("SET").arg(place).arg(record).query_async::<()>(connection).await.unwrap();
}

#[tokio::test]
async fn the_store_in_redis_conforms() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let clock = RedisClock(connection.clone());
    conforms(&store, &clock, 1).await;
    // Ten thousand more, emptied now and then: time passes for all keys that are there.
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    for round in 0..200 {
        run(&mut connection, &["FLUSHDB"]).await;
        conformance::histories(&store, &clock, seed.wrapping_add(round * 50), 50, 20).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_evicts_is_refused_and_told_what_to_set() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::start_with(&["--maxmemory-policy", policy]).await.unwrap();
        let opened = RedisStore::open(RedisSettings::new(&redis.url())).await;
        let Err(StoreError::Refused(why)) = &opened else { panic!("{opened:?}") };
        assert!(why.contains(policy) && why.contains("set maxmemory-policy noeviction"), "{why}");
    }
}

#[tokio::test]
async fn a_node_of_a_cluster_is_refused() {
    let redis = Redis::start_with(&["--cluster-enabled", "yes"]).await.unwrap();
    let opened = RedisStore::open(RedisSettings::new(&redis.url())).await;
    assert!(matches!(&opened, Err(StoreError::Refused(why)) if why.contains("cluster")), "{opened:?}");
}

#[tokio::test]
async fn a_key_is_forgotten_after_its_retention_and_never_with_its_lease() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let clock = RedisClock(connection.clone());
    let key = identity("order 1");
    let ttl = async |connection: &mut MultiplexedConnection| -> i64 {
        redis::cmd("TTL").arg(store.place(&key)).query_async(connection).await.unwrap()
    };
    let held = hold(&store, &key, "first").await;
    assert!((86_390..=86_400).contains(&ttl(&mut connection).await), "the retention, not the lease");
    clock.advance(Duration::from_secs(500)).await;
    assert!(
        matches!(store.claim(&claim(&key, "second")).await.unwrap(), ClaimOutcome::Granted(grant) if grant.is_takeover)
    );
    let _ = held;
    assert!((86_390..=86_400).contains(&ttl(&mut connection).await), "counted from the last word");
    clock.advance(Duration::from_secs(86_401)).await;
    assert_eq!(ttl(&mut connection).await, -2, "gone");
}

/// A claimant's clock may be wrong by hours: only the server's counts.
#[tokio::test]
async fn whoever_claims_says_how_long_and_never_what_time_it_is() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let address = redis.url();
    let address = address.trim_start_matches("redis://").trim_end_matches('/');
    let mut watching = BufReader::new(TcpStream::connect(address).await.unwrap());
    watching.write_all(b"MONITOR\r\n").await.unwrap();
    let mut line = String::new();
    watching.read_line(&mut line).await.unwrap();
    assert_eq!(line, "+OK\r\n");
    hold(&store, &identity("order 1"), "first").await;
    while !line.contains("_claim\"") {
        line.clear();
        let read = tokio::time::timeout(Duration::from_secs(20), watching.read_line(&mut line));
        assert_ne!(read.await.unwrap().unwrap(), 0);
    }
    // In seconds, milliseconds or microseconds since 1970: nothing that was said is within a year of now.
    let now = chrono::Utc::now().timestamp_micros();
    let numbers: Vec<i64> = line.split('"').filter_map(|word| word.parse().ok()).collect();
    assert!(numbers.contains(&30_000_000), "the lease: {line}");
    for (number, unit) in numbers.iter().flat_map(|number| [1_000_000, 1_000, 1].map(|unit| (number, unit))) {
        let off = number.saturating_mul(unit).saturating_sub(now).abs();
        assert!(off > 31_536_000_000_000, "{number} is a time of day: {line}");
    }
}

#[tokio::test]
async fn what_is_damaged_is_an_error_and_no_freedom() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    // A record: status, fingerprint, token at 17, attempts and crashes, retention at 33, end of the run, end of the lease, bytes of the owner
    // at 57, the owner, the steps.
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 15] = [
        ("an unknown status", |record| record[0] = b'X'),
        ("nothing", |record| record.clear()),
        ("without times", |record| record.truncate(40)),
        ("completed, and cut", |record| {
            record[0] = b'C';
            record.truncate(30);
        }),
        ("cut in the owner", |record| record.truncate(63)),
        ("no owner", |record| {
            record.truncate(61);
            record[57..61].fill(0);
        }),
        ("a longer owner", |record| record[57] = 1),
        ("a token that is no number", |record| record[17..25].copy_from_slice(&f64::NAN.to_be_bytes())),
        ("a negative token", |record| record[17..25].copy_from_slice(&(-5.0_f64).to_be_bytes())),
        ("half a token", |record| record[17..25].copy_from_slice(&0.5_f64.to_be_bytes())),
        ("no retention", |record| record[33..41].fill(0)),
        ("an endless retention", |record| record[33..41].copy_from_slice(&f64::INFINITY.to_be_bytes())),
        ("no end of the run", |record| record[41..49].fill(0)),
        ("no end of the lease", |record| record[49..57].fill(0)),
        ("an end of the lease that is no number", |record| {
            record[49..57].copy_from_slice(&f64::NAN.to_be_bytes())
        }),
    ];
    for (name, damage) in damages {
        let key = identity(name);
        let held = hold(&store, &key, "first").await;
        let place = store.place(&key);
        change(&mut connection, &place, damage).await;
        let before = run(&mut connection, &["GET", &place]).await;
        for answer in [
            store.claim(&claim(&key, "second")).await.map(drop),
            store.complete(&held, None).await,
            store.release(&held).await.map(drop),
            store.renew(std::slice::from_ref(&held), LEASE).await.map(drop),
            store.look_up(&key).await.map(drop),
        ] {
            assert!(matches!(answer, Err(StoreError::Damaged(_))), "{name}: {answer:?}");
        }
        assert_eq!(run(&mut connection, &["GET", &place]).await, before, "{name}");
    }
    let key = identity("steps");
    let held = hold(&store, &key, "first").await;
    let step = Step::new("charge", Repeat::Never);
    store.begin_step(&held, &step, uuid::Uuid::new_v4(), LEASE).await.unwrap();
    let cut = |record: &mut Vec<u8>| record.truncate(record.len() - 3);
    change(&mut connection, &store.place(&key), cut).await;
    let begun = store.begin_step(&held, &step, uuid::Uuid::new_v4(), LEASE).await;
    assert!(matches!(&begun, Err(StoreError::Damaged(part)) if part.contains("steps")), "{begun:?}");
    let stored = store.checkpoint(&held, "charge", &1.into(), LEASE).await;
    assert!(matches!(stored, Err(StoreError::Damaged(_))), "{stored:?}");
    let key = identity("a list");
    run(&mut connection, &["LPUSH", &store.place(&key), "x"]).await;
    let claimed = store.claim(&claim(&key, "first")).await;
    assert!(matches!(claimed, Err(StoreError::Damaged(_))), "{claimed:?}");
}

#[tokio::test]
async fn functions_that_are_gone_are_loaded_again_and_need_no_right_where_they_are() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let key = identity("order 1");
    let held = hold(&store, &key, "first").await;
    run(&mut connection, &["FUNCTION", "FLUSH"]).await;
    // The first call finds out, and the next one loads them.
    assert!(matches!(store.complete(&held, None).await, Err(StoreError::Unavailable(_))));
    store.complete(&held, None).await.unwrap();
    // A user who may only call.
    run(
        &mut connection,
        &[&["ACL", "SETUSER", "app", "on", ">secret", "~oncely:*", "-@all"], RedisStore::COMMANDS].concat(),
    )
    .await;
    let url = redis.url().replace("redis://", "redis://app:secret@");
    let user = RedisStore::open(RedisSettings::new(&url)).await.unwrap();
    assert_eq!(user.claim(&claim(&key, "second")).await.unwrap(), ClaimOutcome::Done(None));
    run(&mut connection, &["FUNCTION", "FLUSH"]).await;
    assert!(RedisStore::open(RedisSettings::new(&url)).await.is_err());
    run(&mut connection, &["FUNCTION", "LOAD", &RedisStore::library()]).await;
    RedisStore::open(RedisSettings::new(&url)).await.unwrap();
    assert!(!format!("{user:?}").contains("secret"));
}

#[tokio::test]
async fn another_ones_functions_under_our_name_are_not_called() {
    let redis = Redis::start().await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let ours = RedisStore::library();
    let (head, _) = ours.split_once('\n').unwrap();
    let name = head.split_once("name=").unwrap().1;
    let theirs = format!(
        "{head}\nredis.register_function('{name}_claim', function() return {{ 'granted', '1', '1', '1' }} end)"
    );
    run(&mut connection, &["FUNCTION", "LOAD", &theirs]).await;
    let opened = RedisStore::open(RedisSettings::new(&redis.url())).await;
    assert!(
        matches!(&opened, Err(StoreError::Refused(why)) if why.contains("FUNCTION DELETE")),
        "{opened:?}"
    );
    run(&mut connection, &["FUNCTION", "DELETE", name]).await;
    // Several processes that start at once load it once.
    let opening = (0..8).map(|_| RedisStore::open(RedisSettings::new(&redis.url())));
    for opened in futures::future::join_all(opening).await {
        opened.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_killed_is_unavailable_and_what_it_forgot_runs_again_under_a_greater_token() {
    let mut redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    assert_eq!(store.facts().failover, Failover::Forgets);
    let key = identity("order 1");
    let held = hold(&store, &key, "first").await;
    redis.kill().unwrap();
    for answer in [store.complete(&held, None).await, store.release(&held).await.map(drop)] {
        assert!(matches!(answer, Err(StoreError::Unavailable(_))), "nobody says that it is lost: {answer:?}");
    }
    redis.restart().await.unwrap();
    // Without a file it has forgotten everything: nobody holds the key, and the old run completes nothing.
    let answer = store.complete(&held, None).await;
    assert!(matches!(answer, Err(StoreError::Lost)), "{answer:?}");
    let next = hold(&store, &key, "second").await;
    assert!(next.token > held.token);
    assert!(matches!(store.complete(&held, None).await, Err(StoreError::Lost)));
    assert_eq!(store.renew(&[held, next], LEASE).await.unwrap()[0], RenewOutcome::Lost);
}

#[tokio::test]
async fn a_flushed_server_forgets_a_completed_key_and_fences_the_run_of_before() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let (done, running) = (identity("done"), identity("running"));
    let first = hold(&store, &done, "first").await;
    store.complete(&first, None).await.unwrap();
    let old = hold(&store, &running, "first").await;
    run(&mut connection, &["FLUSHALL"]).await;
    let again = hold(&store, &done, "second").await;
    assert!(again.token > first.token, "a completed key runs again: this is what Failover::Forgets says");
    assert!(matches!(store.complete(&old, None).await, Err(StoreError::Lost)));
    let new = hold(&store, &running, "second").await;
    assert!(matches!(store.complete(&old, None).await, Err(StoreError::Lost)));
    store.complete(&new, None).await.unwrap();
}

#[tokio::test]
async fn after_a_failover_what_the_replica_had_holds_and_what_it_lacked_is_claimed_anew() {
    let mut redis = SentinelRedis::start(&[]).await.unwrap();
    let mut settings = RedisSettings::new("redis://mymaster");
    settings.sentinels = redis.sentinel_urls().into_iter().map(Into::into).collect();
    settings.allow_plaintext = true;
    let store = RedisStore::open(settings).await.unwrap();
    let (done, running, lacking) = (identity("done"), identity("running"), identity("lacking"));
    let first = hold(&store, &done, "first").await;
    store.complete(&first, Some(&7.into())).await.unwrap();
    let held = hold(&store, &running, "first").await;
    redis.wait_for_replica().await.unwrap();
    // From here on the replica hears nothing.
    let mut replica = connect(&redis.nodes[1].url()).await;
    run(&mut replica, &["CLIENT", "KILL", "TYPE", "MASTER"]).await;
    run(&mut replica, &["CONFIG", "SET", "masterauth", "wrong"]).await;
    let mut master = connect(&redis.nodes[0].url()).await;
    run(&mut master, &["CONFIG", "SET", "requirepass", "closed"]).await;
    run(&mut master, &["CLIENT", "KILL", "TYPE", "REPLICA"]).await;
    let lost = hold(&store, &lacking, "first").await;
    store.complete(&lost, None).await.unwrap();
    redis.fail_over().await.unwrap();
    eventually("the new master answers", || async {
        store.look_up(&done).await.map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    assert_eq!(store.claim(&claim(&done, "second")).await.unwrap(), ClaimOutcome::Done(Some(7.into())));
    // Its functions came with the data, and the holder goes on.
    store.complete(&held, None).await.unwrap();
    let again = hold(&store, &lacking, "second").await;
    assert!(again.token > lost.token, "completed, forgotten, and claimed again");
    assert!(matches!(store.complete(&lost, None).await, Err(StoreError::Lost)));
}

/// With the same response, and keys of the usual kind.
#[tokio::test]
async fn a_completed_key_takes_a_fifth_less_memory_than_the_articles_json() {
    let redis = Redis::start().await.unwrap();
    let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
    let mut connection = connect(&redis.url()).await;
    let response = serde_json::json!({ "success": true, "transactionId": "txn_123" });
    let key = identity("550e8400-e29b-41d4-a716-446655440000");
    let held = hold(&store, &key, &uuid::Uuid::new_v4().to_string()).await;
    store.complete(&held, Some(&response)).await.unwrap();
    let theirs = "idempotency:v2:order-service:550e8400-e29b-41d4-a716-446655440000";
    let json = serde_json::json!({
        "status": "COMPLETED", "owner": "consumer-0123456789abcdef", "completedAt": 1_764_109_999_999_i64, "result": response,
    });
    run(&mut connection, &["SET", theirs, &json.to_string(), "EX", "86400"]).await;
    let mut bytes = Vec::new();
    for place in [&store.place(&key), theirs] {
        let used = redis::cmd("MEMORY").arg("USAGE").arg(place).query_async::<u32>(&mut connection).await;
        bytes.push(f64::from(used.unwrap()));
    }
    assert!(bytes[0] <= 0.8 * bytes[1], "{bytes:?}");
}
