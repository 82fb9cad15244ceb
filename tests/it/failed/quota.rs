//! A tenant's dead letters are stored as far as its quota goes; what is beyond it is in the dead-letter queue alone, and nothing of it is lost.

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{WAITING, dead, failed, fragile, kind, mend, requeue_all};
use crate::support::{World, http, message};

/// What is stored, as it is and as it is reckoned: by one snapshot.
const RECKONED: &str = "select
    (select coalesce(sum(stored_size), 0)::bigint from oncely.dead_letters),
    (select count(*) from oncely.dead_letters where stored_size > 0),
    (select coalesce(sum(bytes), 0)::bigint from (select bytes from oncely.letter_usage union all select bytes from oncely.letter_growth) as r),
    (select coalesce(sum(letters), 0)::bigint from (select letters from oncely.letter_usage union all select letters from oncely.letter_growth) as r)";

async fn run(world: &World, code: i32, arguments: &[&str]) -> Value {
    let output = world.oncely(arguments).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[tokio::test]
async fn a_tenant_over_its_quota_loses_nothing_and_takes_nothing_from_another() {
    let mut world = fragile(&["a"], "lanes = 1").await;
    world.configure("[relay]\nlisten = \"127.0.0.1:0\"\n[dead_letters]\ntenant_letters = 3");
    let worker = world.start("worker");
    for number in 0..6 {
        world.publish("payments", message("flood", &format!("k{number}")), &kind("a")).await;
    }
    world.wait_for(WAITING, 6).await;
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 7).await;
    world.wait_for_ready(&dead(&world), 7).await;
    let stored = "select string_agg(concat(tenant, ' ', whole, ' ', omitted, ' ', headers is null and body is null, ' ', n), ', ' order by tenant, whole)
        from (select tenant, whole, omitted, body, headers, count(*) over (partition by tenant, whole) as n, row_number() over (partition by tenant, whole) as r
              from oncely.dead_letters) as d where r = 1";
    assert_eq!(
        world.text(stored).await.unwrap(),
        "acme t  f 1, flood f quota t 3, flood t  f 3",
        "no letter of acme's made room"
    );
    // Whoever looks is told whose quota it is, and a letter says why its body is not there.
    let relay = world.start("relay");
    world.wait_for("select coalesce(sum(left_out), 0)::bigint from oncely.letter_usage", 3).await;
    http::wait_for(&http::address(&relay).await, "/metrics", 200, "oncely_letter_quota_exceeded 1").await;
    world.stop(relay).await;
    let usage = run(&world, 0, &["tenant", "usage", "--json"]).await;
    let flood = usage["tenants"].as_array().unwrap().iter().find(|row| row["tenant"] == "flood").unwrap();
    assert_eq!(
        ["letters", "most_letters", "left_out"].map(|name| flood[name].as_i64().unwrap()),
        [3, 3, 3],
        "{usage}"
    );
    let status = run(&world, 1, &["status", "--json"]).await;
    assert_eq!(status["postgres"]["over_quota"], json!([{ "tenant": "flood", "left_out": 3 }]), "{status}");
    assert!(status["findings"].to_string().contains("the tenant flood is over its quota"), "{status}");
    let doctor = world.oncely(&["doctor", "--json"]).await;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(doctor.contains("3 open dead letters of the tenant flood"), "{doctor}");
    let id =
        world.text("select min(id::text) from oncely.dead_letters where omitted = 'quota'").await.unwrap();
    let shown = world.oncely(&["failed", "show", &id]).await;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("its tenant has no more room"), "{shown}");
    // All of them run, those that the queue alone has, too.
    mend(&mut world).await;
    requeue_all(&world).await;
    world.wait_for("select count(*) from app.effects", 7).await;
    world.stop(worker).await;
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    run(&world, 0, &["gc", "run"]).await;
    assert_eq!(world.count("select count(*) from oncely.letter_usage where left_out > 0").await, 0);
}

#[tokio::test]
async fn a_message_that_comes_again_with_more_than_fits_stays_stored_as_it_was() {
    let mut world = fragile(&["a"], "lanes = 1").await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    let before =
        world.text("select concat(body, headers, omitted, stored_size) from oncely.dead_letters").await;
    let size = world.count("select stored_size from oncely.dead_letters").await;
    run(&world, 0, &["tenant", "limit", "acme", "--bytes", &size.to_string(), "--json"]).await;
    let mut larger = message("acme", "k");
    let mut headers = larger.headers().clone().unwrap_or_default();
    headers.insert("x-baggage".into(), AMQPValue::LongString("b".repeat(5_000).into()));
    larger = larger.with_headers(headers);
    world.publish("payments", larger, &kind("a")).await;
    world.wait_for("select times::bigint from oncely.dead_letters", 2).await;
    let after =
        world.text("select concat(body, headers, omitted, stored_size) from oncely.dead_letters").await;
    assert_eq!(after, before);
    world.stop(worker).await;
    let row = sqlx::query(RECKONED).fetch_one(&mut world.sql).await.unwrap();
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (row.get::<i64, _>(2), row.get::<i64, _>(3)));
}

#[tokio::test]
async fn bodies_without_a_key_fill_the_quota_of_nobody_and_not_the_database() {
    let mut world = fragile(&["a"], "lanes = 1").await;
    world.configure("[dead_letters]\nmax_body = 300000\ntenant_bytes = 100");
    // An operator gives more to messages whose tenant is not known, and says why.
    let limit = ["tenant", "limit", "", "--bytes", "1000000", "--note", "a week", "--json"];
    let said = run(&world, 0, &limit).await;
    assert_eq!((&said["bytes"], &said["letters"]), (&json!(1_000_000), &Value::Null), "{said}");
    let noted =
        "select concat(verb, ' ', filter ->> 'letter_bytes', ' ', reason) from oncely.operator_actions";
    assert_eq!(world.text(noted).await.unwrap(), "limit tenant 1000000 a week");
    let worker = world.start("worker");
    let body = "x".repeat(256 << 10);
    for _ in 0..40 {
        world.publish("payments", BasicProperties::default(), &body).await;
    }
    world.wait_for(WAITING, 40).await;
    world.wait_for_ready(&dead(&world), 40).await;
    assert_eq!(world.count("select count(*) from oncely.dead_letters where whole").await, 3);
    // What is stored already is not stored again: a letter that comes back needs no more room, and keeps its body.
    let back = "select count(*) from oncely.dead_letters where whole and generation = 2";
    let ids =
        world.text("select string_agg(id::text, ' ') from oncely.dead_letters where whole").await.unwrap();
    let requeue = [&["requeue"][..], &ids.split(' ').collect::<Vec<_>>(), &["--yes"]].concat();
    failed(&world, 0, &requeue).await;
    world.wait_for(back, 3).await;
    world.stop(worker).await;
    let row = sqlx::query(RECKONED).fetch_one(&mut world.sql).await.unwrap();
    let [bytes, letters, reckoned_bytes, reckoned_letters] =
        [0, 1, 2, 3].map(|place| row.get::<i64, _>(place));
    assert_eq!((bytes, letters), (reckoned_bytes, reckoned_letters));
    assert!(bytes <= 1_000_000, "{bytes}");
    // The limit goes, and with it the room.
    run(&world, 0, &["tenant", "limit", "", "--default"]).await;
    assert_eq!(world.count("select count(*) from oncely.tenant_limits").await, 0);
}

#[tokio::test]
async fn what_is_stored_is_reckoned_exactly_while_it_grows_and_is_counted() {
    let mut world = fragile(&["a"], "lanes = 4\nbatch = 8").await;
    let mut counting = world.database.connect().await.unwrap();
    let worker = world.start("worker");
    for number in 0..400 {
        world
            .publish("payments", message(&format!("t{}", number % 3), &format!("k{number}")), &kind("a"))
            .await;
    }
    let (mut looks, mut counts) = (0, 0);
    loop {
        let counted = sqlx::query("select oncely.count_letters(1000, 1000000)").execute(&mut counting);
        let look = sqlx::query(RECKONED).fetch_one(&mut world.sql);
        let (counted, row) = tokio::join!(counted, look);
        counts += counted.unwrap().rows_affected();
        let row = row.unwrap();
        let [bytes, letters, reckoned_bytes, reckoned_letters] =
            [0, 1, 2, 3].map(|place| row.get::<i64, _>(place));
        assert_eq!((bytes, letters), (reckoned_bytes, reckoned_letters), "look {looks}");
        looks += 1;
        if letters == 400 {
            break;
        }
        tokio::task::yield_now().await;
    }
    world.stop(worker).await;
    assert!(looks > 1 && counts > 1);
    // Of two counts at once one does it.
    let mut other = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select oncely.count_letters(1, 1)").execute(&mut other).await.unwrap();
    let second =
        world.count("select count(*) from oncely.count_letters(1, 1) as room where room is null").await;
    assert_eq!(second, 1);
}

#[tokio::test]
async fn closed_letters_make_room_for_open_ones_of_their_tenant() {
    let mut world = fragile(&["a"], "lanes = 1").await;
    world.configure("[dead_letters]\ntenant_letters = 2");
    let worker = world.start("worker");
    world.publish("payments", message("other", "k"), &kind("a")).await;
    for number in 0..3 {
        world.publish("payments", message("acme", &format!("k{number}")), &kind("a")).await;
        world.wait_for(WAITING, number + 2).await;
    }
    world.wait_for_ready(&dead(&world), 4).await;
    run(&world, 0, &["gc", "run"]).await;
    assert_eq!(
        world.count("select count(*) from oncely.dead_letters where whole").await,
        3,
        "none is closed"
    );
    failed(&world, 0, &["discard", "--all", "--yes"]).await;
    run(&world, 0, &["gc", "run"]).await;
    let kept = "select string_agg(concat(tenant, ' ', omitted), ', ' order by tenant, omitted) from oncely.dead_letters";
    assert_eq!(world.text(kept).await.unwrap(), "acme quota, acme room, acme room, other ");
    run(&world, 0, &["gc", "run"]).await;
    world.publish("payments", message("acme", "k3"), &kind("a")).await;
    world.wait_for(WAITING, 1).await;
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.dead_letters where whole and state = 'waiting'").await,
        1
    );
}
