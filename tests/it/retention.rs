//! What decides about keys stands in the database, not in whichever file a process was started with.

use serde_json::json;

use crate::support::{World, message};

/// Keys that took effect so many days ago.
async fn old_keys(world: &mut World, days: i32) {
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', 'old' || n, 'COMPLETED', 1, t.at, t.at
         from generate_series(1, 5) as n cross join (select now() - make_interval(days => $1) as at) as t",
    )
    .bind(days)
    .execute(&mut world.sql)
    .await
    .unwrap();
}

/// The trail has a decision of each of these days, counted back from today.
async fn decisions(world: &mut World, days: impl Iterator<Item = i32>) {
    sqlx::query(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now() - make_interval(days => n), 1, 'payments', 'k', 'q', 'completed', 'w' from unnest($1) as n",
    )
    .bind(days.collect::<Vec<_>>())
    .execute(&mut world.sql)
    .await
    .unwrap();
}

const KEYS: &str = "select count(*) from oncely.idempotency_keys";

async fn gc(world: &World, code: i32) -> String {
    let output = world.oncely(&["gc", "run"]).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[tokio::test]
async fn the_longest_retention_that_a_worker_has_started_with_wins_until_an_operator_shortens_it() {
    let mut world = World::new().await;
    world.consumer("payments", "retention = \"30d\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    let known = "select count(*) from oncely.consumers where retention = interval '30 days'";
    world.wait_for(known, 1).await;
    world.stop(worker).await;
    old_keys(&mut world, 10).await;
    // The file of whoever collects says less.
    world.reconfigure("retention = \"30d\"", "retention = \"7d\"");
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 5);
    let check = world.oncely(&["check"]).await;
    let told = "retention is 7days, but the database keeps keys for 30days, and that is used; to shorten it: `oncely retention set \
                payments 7days`";
    assert!(String::from_utf8_lossy(&check.stdout).contains(told), "{check:?}");
    // So does another worker's: it is told, and shortens nothing.
    let worker = world.start("worker");
    world.wait_for_line(&worker, "configured retention 7days is shorter than 30days").await;
    world.stop(worker).await;
    assert_eq!(world.count(known).await, 1);
    let refused = world.oncely(&["retention", "set", "payments", "12h"]).await;
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let done = world.oncely(&["retention", "set", "payments", "7d", "--note", "disk"]).await;
    assert!(done.status.success(), "{done:?}");
    let action = "select concat_ws('|', verb, filter ->> 'consumer', reason, actor ~ '^postgres \\(') from oncely.operator_actions";
    assert_eq!(world.text(action).await.as_deref(), Some("set retention|payments|disk|t"));
    let listed = world.oncely(&["retention", "list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["consumers"][0]["retention"], json!(604_800.0), "{listed}");
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 0);
}

#[tokio::test]
async fn nothing_is_collected_of_a_consumer_that_no_worker_has_started_with() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    old_keys(&mut world, 100).await;
    let told = gc(&world, 0).await;
    assert!(told.contains("payments: no worker has started with it on this database"), "{told}");
    assert_eq!(world.count(KEYS).await, 5);
    let unknown = world.oncely(&["retention", "set", "payments", "7d"]).await;
    assert_eq!(unknown.status.code(), Some(1), "{unknown:?}");
}

/// The database's clock went ahead by so many days since the maintenance last looked at it.
async fn jump(world: &mut World, days: i32) {
    sqlx::query("update oncely.maintenance set clock_seen_at = now() - make_interval(days => $1)")
        .bind(days)
        .execute(&mut world.sql)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_jump_of_the_clock_that_nothing_explains_collects_nothing_until_an_operator_says_that_it_is_right()
{
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    old_keys(&mut world, 10).await;
    let partitions = "select count(*) from pg_inherits where inhparent = 'oncely.audit'::regclass";
    sqlx::query("select oncely.make_audit_partition(now() - interval '120 days')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let before = world.count(partitions).await;
    jump(&mut world, 30).await;
    let told = gc(&world, 4).await;
    assert!(told.contains("nothing is deleted") && told.contains("oncely gc run --accept-clock"), "{told}");
    assert_eq!(world.count(KEYS).await, 5);
    assert_eq!(world.count(partitions).await, before, "nor a part of the trail");
    let check = world.oncely(&["check"]).await;
    assert!(
        String::from_utf8_lossy(&check.stdout).contains("! nothing is collected: the database's clock said"),
        "{check:?}"
    );
    // It is refused as long as nobody says that it is right.
    gc(&world, 4).await;
    let accepted = world.oncely(&["gc", "run", "--accept-clock"]).await;
    assert!(accepted.status.success(), "{accepted:?}");
    assert_eq!(world.count(KEYS).await, 0);
    assert_eq!(world.count(partitions).await, before - 1);
    assert_eq!(
        world.count("select count(*) from oncely.operator_actions where verb = 'accept clock'").await,
        1
    );
    gc(&world, 0).await;
}

#[tokio::test]
async fn a_time_without_a_relay_is_explained_by_what_was_decided_meanwhile() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    old_keys(&mut world, 40).await;
    jump(&mut world, 30).await;
    // A decision every two days, but for a hole of ten.
    decisions(&mut world, (0..=30).step_by(2).filter(|day| !(11..=19).contains(day))).await;
    gc(&world, 4).await;
    assert_eq!(world.count(KEYS).await, 5);
    decisions(&mut world, 11..=19).await;
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 0);
}

#[tokio::test]
async fn messages_in_retry_run_after_their_consumer_compares_something_else() {
    let mut world = World::new().await;
    world.consumer("payments", "fingerprint = \"body\"\nretry = { delays = [\"3s\"], max_attempts = 3 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    for key in ["a", "b", "c"] {
        world.publish("payments", message("acme", key), r#"{"do": "fail_once"}"#).await;
    }
    let failed = "select count(*) from oncely.idempotency_keys where tenant = 'acme' and attempts = 1";
    world.wait_beside_good_ones("payments", failed, 3).await;
    world.stop(worker).await;
    world.reconfigure("fingerprint = \"body\"", "fingerprint = \"canonical_json\"");
    let worker = world.start("worker");
    world.wait_for_line(&worker, "fingerprint policy changed").await;
    let effects = "select count(*) from app.effects where tenant = 'acme'";
    world.wait_for(effects, 3).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    // Stored with the policy of now: another payload is one again, and the same one is a duplicate.
    world.publish("payments", message("acme", "a"), r#"{ "do" : "fail_once" }"#).await;
    world.publish("payments", message("acme", "b"), r#"{"do": "nothing of the kind"}"#).await;
    world.wait_for("select count(*) from oncely.audit where reason = 'key_conflict'", 1).await;
    world.stop(worker).await;
    let conflicts = "select string_agg(key, ' ') from oncely.audit where outcome = 'dead_lettered'";
    assert_eq!(world.text(conflicts).await.as_deref(), Some("b"));
    assert_eq!(world.count(effects).await, 3);
}

#[tokio::test]
async fn a_key_that_took_effect_under_another_policy_is_a_duplicate_and_one_that_was_given_up_stays_given_up()
{
    let mut world = World::new().await;
    world.configure("[audit]\nduplicates = true");
    world.consumer("payments", "fingerprint = \"body\"\nretry = { delays = [], max_attempts = 1 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "done"), "{}").await;
    world.publish("payments", message("acme", "failed"), r#"{"do": "fail_once"}"#).await;
    world
        .wait_for("select count(*) from oncely.idempotency_keys where status in ('COMPLETED', 'FAILED')", 2)
        .await;
    world.stop(worker).await;
    world.reconfigure("fingerprint = \"body\"", "fingerprint = { json_pointers = [\"/do\"] }");
    let worker = world.start("worker");
    world.publish("payments", message("acme", "done"), "{}").await;
    world.publish("payments", message("acme", "failed"), r#"{"do": "fail_once"}"#).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 1).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 2).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where reason = 'key_conflict'").await, 0);
    // Requeued, the given-up one runs with the policy of now.
    let worker = world.start("worker");
    let done = world.oncely(&["failed", "requeue", "--all", "--yes"]).await;
    assert!(done.status.success(), "{done:?}");
    world.wait_for("select count(*) from oncely.audit where key = 'failed' and attempt > 0", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_retention_is_not_shortened_below_what_the_mirror_still_says() {
    let redis = testbed::Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "ttl = \"1h\"");
    world.consumer("payments", "retention = \"7d\"\nredelivery_horizon = \"30m\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.consumers", 1).await;
    world.stop(worker).await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.cell where mirror_ttl = '1 h'", 1).await;
    world.stop(relay).await;
    let key = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        select 'acme', 'payments', 'k', 'COMPLETED', 1, now() - interval '3 hours', now() - interval '3 hours'";
    sqlx::query(key).execute(&mut world.sql).await.unwrap();
    let refused = world.oncely(&["retention", "set", "payments", "50m"]).await;
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mirror.ttl"), "{refused:?}");
    let done = world.oncely(&["retention", "set", "payments", "2h"]).await;
    assert!(done.status.success(), "{done:?}");
    // An entry that was written a moment ago lives for a ttl.
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 1);
    // That much later.
    sqlx::query("update oncely.consumers set former_until = now() - interval '1 second'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 0);
}

#[tokio::test]
async fn the_longest_horizon_that_a_worker_has_started_with_wins_until_an_operator_shortens_it() {
    let mut world = World::new().await;
    world.consumer("payments", "retention = \"30d\"\nredelivery_horizon = \"3d\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    let known = "select count(*) from oncely.consumers where redelivery_horizon = interval '3 days'";
    world.wait_for(known, 1).await;
    world.stop(worker).await;
    // A deployment rolls, and back; a login of a worker says what it likes.
    world.reconfigure("redelivery_horizon = \"3d\"", "redelivery_horizon = \"1h\"");
    let worker = world.start("worker");
    let told = "is shorter than 3days, the longest that a worker has started with; the longer one is used; \
                to shorten it: `oncely retention set payments 30days --redelivery-horizon 1h`";
    world.wait_for_line(&worker, told).await;
    world.stop(worker).await;
    assert_eq!(world.count(known).await, 1);
    // The collection goes by it for a tenant that is forgotten sooner.
    let limited = world.oncely(&["tenant", "limit", "acme", "--retention", "2h"]).await;
    assert!(limited.status.success(), "{limited:?}");
    sqlx::query(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select 'acme', 'payments', age::text, 'COMPLETED', 1, now() - age, now() - age
         from unnest(array[interval '4 days', interval '2 days', interval '90 minutes']) as age",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 2);
    let set = ["retention", "set", "payments", "30d", "--redelivery-horizon"];
    let refused = world.oncely(&[set.as_slice(), &["31d"]].concat()).await;
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let refused = world.oncely(&[set.as_slice(), &["0s"]].concat()).await;
    assert_eq!(refused.status.code(), Some(4), "{refused:?}");
    let done = world.oncely(&[set.as_slice(), &["1h"]].concat()).await;
    assert!(done.status.success(), "{done:?}");
    let action =
        "select concat_ws('|', filter ->> 'redelivery_horizon_from', filter ->> 'redelivery_horizon_to')
        from oncely.operator_actions where verb = 'set retention' and filter ? 'consumer'";
    assert_eq!(world.text(action).await.as_deref(), Some("3 days|01:00:00"));
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 1);
}

#[tokio::test]
async fn of_relays_with_different_lifetimes_of_entries_the_longest_counts_as_long_as_it_is_at_work() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "30d").await;
    let set = "select oncely.set_retention('payments', interval '2 days', null, 'ana', null)";
    let refused = async |world: &mut World| {
        let error = sqlx::query(set).execute(&mut world.sql).await.unwrap_err();
        assert_eq!(error.as_database_error().unwrap().code().as_deref(), Some("ONC11"), "{error}");
    };
    let tell = async |world: &mut World, ttl: &'static str| {
        sqlx::query("select oncely.register_mirror_ttl($1::text::interval)")
            .bind(ttl)
            .execute(&mut world.sql)
            .await
            .unwrap();
    };
    tell(&mut world, "7 days").await;
    tell(&mut world, "1 hour").await;
    refused(&mut world).await;
    let later = "update oncely.cell set mirror_ttl_until = mirror_ttl_until - interval '8 days'";
    // Both are at work: each tells it every hour.
    tell(&mut world, "7 days").await;
    sqlx::query(later).execute(&mut world.sql).await.unwrap();
    tell(&mut world, "1 hour").await;
    refused(&mut world).await;
    // The first one is gone, for longer than its entries live. Of the others the longest counts, whoever tells it first.
    tell(&mut world, "3 days").await;
    sqlx::query(later).execute(&mut world.sql).await.unwrap();
    tell(&mut world, "1 hour").await;
    refused(&mut world).await;
    sqlx::query(later).execute(&mut world.sql).await.unwrap();
    tell(&mut world, "1 hour").await;
    sqlx::query(set).execute(&mut world.sql).await.unwrap();
}

#[tokio::test]
async fn no_mirror_entry_outlives_a_retention_that_was_shortened_while_its_worker_was_at_work() {
    let redis = testbed::Redis::start().await.unwrap();
    let mut world = World::new().await;
    world.with_redis(&redis.url(), "ttl = \"1h\"");
    world.consumer("payments", "retention = \"7d\"\nredelivery_horizon = \"30m\"");
    world.apply_topology().await;
    let worker = world.start("worker");
    let records = "select count(*) from oncely.mirror_queue";
    let entries = async |world: &mut World| {
        let relay = world.start("relay");
        world.wait_for(records, 0).await;
        world.stop(relay).await;
        let client = redis::Client::open(redis.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let found: Vec<String> = redis::AsyncCommands::keys(&mut connection, "oncely:2:*").await.unwrap();
        found.len()
    };
    world.publish("payments", message("acme", "before"), "{}").await;
    world.wait_for(records, 1).await;
    let done = world.oncely(&["retention", "set", "payments", "1h"]).await;
    assert!(done.status.success(), "{done:?}");
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for(records, 2).await;
    // The relay comes to them much later.
    sqlx::query("update oncely.mirror_queue set created_at = created_at - interval '2 hours'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(entries(&mut world).await, 0, "their keys may be collected");
    let done = world.oncely(&["retention", "set", "payments", "2h"]).await;
    assert!(done.status.success(), "{done:?}");
    world.publish("payments", message("acme", "longer"), "{}").await;
    world.wait_for("select count(*) from app.effects", 3).await;
    assert_eq!(entries(&mut world).await, 1);
    world.stop(worker).await;
}

#[tokio::test]
async fn a_key_that_is_being_said_again_to_the_mirror_is_not_collected() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    old_keys(&mut world, 5).await;
    sqlx::query("select oncely.mirror_again('payments', now() - interval '7 days', 10, now(), null, null)")
        .execute(&mut world.sql)
        .await
        .unwrap();
    assert_eq!(world.count("select count(*) from oncely.mirror_queue").await, 5);
    sqlx::query("update oncely.consumers set retention = '1 day'").execute(&mut world.sql).await.unwrap();
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 5, "a relay may still write entries for them");
    sqlx::query("delete from oncely.mirror_queue").execute(&mut world.sql).await.unwrap();
    gc(&world, 0).await;
    assert_eq!(world.count(KEYS).await, 0);
}
