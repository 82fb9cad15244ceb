//! Order within an ordering key.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use lapin::types::FieldTable;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use oncely_postgres as pg;
use testbed::proxy::Mode;

use super::{bodies, run, world_with};
use crate::support::World;

/// Emits from several sessions at the same time, a few events in each transaction, and notes what came after what: whoever emits
/// under a key waits for the commit of the one before, so the time after each emit is in the order of the commits.
async fn emit_from_all_sides(world: &World, queue: &str, sessions: u32, transactions: u32) {
    let mut tasks = Vec::new();
    for session in 0..sessions {
        let mut sql = world.database.connect().await.unwrap();
        let queue = queue.to_owned();
        tasks.push(tokio::spawn(async move {
            for number in 0..transactions {
                let mut transaction = sql.begin().await.unwrap();
                // One key a transaction: two in another order would be a deadlock.
                let key = (session + number) % 5;
                for part in 0..3 {
                    let text = format!("{key} {session}-{number}-{part}");
                    let emit = format!("select oncely.emit('', '{queue}', '{text}', ordering_key => 'key {key}', tenant => 'acme')");
                    sqlx::query(AssertSqlSafe(emit)).execute(&mut *transaction).await.unwrap();
                    let note = "insert into app.sent values ($1, $2, clock_timestamp())";
                    sqlx::query(note).bind(i32::try_from(key).unwrap()).bind(text).execute(&mut *transaction).await.unwrap();
                }
                match number % 7 {
                    6 => transaction.rollback().await.unwrap(),
                    _ => transaction.commit().await.unwrap(),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn sent(world: &mut World) -> BTreeMap<i32, Vec<String>> {
    let rows = sqlx::query("select key, array_agg(body order by at) from app.sent group by key")
        .fetch_all(&mut world.sql)
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What arrived first, by key; repeats are left out.
fn first_arrivals(bodies: Vec<String>) -> BTreeMap<i32, Vec<String>> {
    let mut seen = HashSet::new();
    let mut arrived: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for body in bodies {
        if seen.insert(body.clone()) {
            let key = body.split(' ').next().unwrap().parse().unwrap();
            arrived.entry(key).or_default().push(body);
        }
    }
    arrived
}

#[tokio::test]
async fn large_events_of_ordering_keys_keep_no_other_waiting() {
    let mut world = world_with("lanes = 1").await;
    let queue = world.queue("events");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    // Each fills a batch by itself.
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{queue}', repeat('x', 16777216), tenant => 'acme', ordering_key => 'k' || n)
             from generate_series(1, 4) as n;
             select oncely.emit('', '{queue}', 'small', tenant => 'beta')"
        ),
    )
    .await;
    let relay = world.start("relay");
    world.wait_for_ready(&queue, 5).await;
    world.stop(relay).await;
    let place = bodies(&world.broker, &queue).await.iter().position(|body| body == "small");
    assert!(place.is_some_and(|place| place <= 1), "{place:?}");
    world.broker.delete_queue(&queue).await.unwrap();
}

#[tokio::test]
async fn a_key_whose_event_has_failed_lets_others_go_first() {
    let mut world = World::new().await;
    // The older one was tried before: it has been due for a shorter time.
    sqlx::raw_sql(
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, ordering_key,
             ordering_number)
         select 'acme', oncely.uuid_v7(now() - age), now() - age, now() - due, '', 'q', 'xx', k, 1
         from (values ('tried', interval '1 hour', interval '1 second'), ('new', '1 minute', '1 minute')) as e (k, age, due)",
    )
    .execute(&mut world.sql)
    .await
    .unwrap();
    let mut transaction = world.sql.begin().await.unwrap();
    let now = pg::read_database_time(&mut transaction).await.unwrap();
    // Room for one of the two.
    let limits = pg::TakeLimits { events: 2, bytes: 2, keys: 10, per_key: 1 };
    let taken =
        pg::take_ordered(&mut transaction, &pg::Unit::default(), now, limits, &mut None).await.unwrap();
    let keys: Vec<_> = taken.iter().map(|event| event.ordering_key.as_deref().unwrap()).collect();
    assert_eq!(keys, ["new"]);
}

#[tokio::test]
async fn events_behind_one_that_another_relay_holds_are_left_to_it() {
    let mut world = World::new().await;
    run(
        &mut world,
        "insert into oncely.events (tenant, id, created_at, available_at, exchange, routing_key, payload, ordering_key,
             ordering_number)
         select 'acme', oncely.uuid_v7(now()), now(), now(), '', 'q', 'xx', 'k', n from generate_series(1, 3) as n",
    )
    .await;
    let limits = pg::TakeLimits { events: 10, bytes: 1_000, keys: 10, per_key: 10 };
    for held in 1..=3 {
        let mut other = world.database.connect().await.unwrap();
        let mut holding = other.begin().await.unwrap();
        let hold = "select 1 from oncely.events where ordering_number = $1 for update";
        sqlx::query(hold).bind(held).execute(&mut *holding).await.unwrap();
        let mut transaction = world.sql.begin().await.unwrap();
        let now = pg::read_database_time(&mut transaction).await.unwrap();
        let taken =
            pg::take_ordered(&mut transaction, &pg::Unit::default(), now, limits, &mut None).await.unwrap();
        assert_eq!(i64::try_from(taken.len()).unwrap(), held - 1, "the one numbered {held} is held");
        // At once: dropped, it would keep its locks until the session's next statement.
        transaction.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn events_of_a_key_arrive_in_the_order_of_the_commits_through_two_relays() {
    let mut world = world_with("batch = 20").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    run(&mut world, "create table app.sent (key integer, body text, at timestamptz)").await;
    let (first, second) = (world.start_as("relay", "first"), world.start_as("relay", "second"));
    emit_from_all_sides(&world, &queue, 4, 60).await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    let sent = sent(&mut world).await;
    assert_eq!(sent.values().map(Vec::len).sum::<usize>(), 4 * 3 * (60 - 8));
    assert_eq!(first_arrivals(bodies(&world.broker, &queue).await), sent);
    world.stop(first).await;
    world.stop(second).await;
}

#[tokio::test]
async fn order_is_kept_when_relays_are_killed_and_publishing_fails() {
    let mut world = world_with("batch = 20").await;
    let queue = world.queue("told");
    // Full after three messages, so that most publishes are refused until somebody reads.
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), lapin::types::AMQPValue::LongInt(3));
    arguments.insert("x-overflow".into(), lapin::types::AMQPValue::LongString("reject-publish".into()));
    world.broker.declare_queue(&queue, arguments).await.unwrap();
    run(&mut world, "create table app.sent (key integer, body text, at timestamptz)").await;
    let patient = [
        ("ONCELY_EVENTS__RETRY__MAX_ATTEMPTS", "1000".to_owned()),
        ("ONCELY_EVENTS__RETRY__DELAYS", "[\"20ms\"]".to_owned()),
    ];
    let disturbed = async {
        let mut read = Vec::new();
        for round in 0..8 {
            let mut dying = world.start_with("relay", &format!("dying {round}"), &patient);
            let steady = world.start_with("relay", &format!("steady {round}"), &patient);
            world.wait_for_line(&steady, "mirror lane started").await;
            let arrived = testbed::eventually_within(Duration::from_secs(5), "something", || async {
                match world.broker.ready(&queue).await? {
                    0 => Err(anyhow::anyhow!("nothing")),
                    _ => Ok(()),
                }
            });
            let is_over = arrived.await.is_err();
            world.kill(&mut dying);
            read.extend(bodies(&world.broker, &queue).await);
            world.stop(steady).await;
            if is_over {
                break;
            }
        }
        read
    };
    let ((), mut arrived) = tokio::join!(emit_from_all_sides(&world, &queue, 4, 14), disturbed);
    let relay = world.start_with("relay", "last", &patient);
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.count("select count(*) from oncely.events").await > 0 {
        arrived.extend(bodies(&world.broker, &queue).await);
        assert!(Instant::now() < deadline, "{}", relay.output());
    }
    arrived.extend(bodies(&world.broker, &queue).await);
    assert_eq!(first_arrivals(arrived), sent(&mut world).await);
    world.stop(relay).await;
}

#[tokio::test]
async fn a_key_whose_head_is_parked_waits_and_all_others_flow() {
    let mut world = world_with("").await;
    let (queue, exchange) = (world.queue("told"), world.queue("unbound"));
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    world.broker.declare_exchange(&exchange, lapin::ExchangeKind::Topic).await.unwrap();
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{queue}', 'before', ordering_key => 'stuck');
             select oncely.emit('{exchange}', 'x', 'head', ordering_key => 'stuck');
             select count(oncely.emit('', '{queue}', 'behind ' || n, ordering_key => 'stuck')) from generate_series(1, 200) as n;
             select count(oncely.emit('', '{queue}', 'other ' || n, ordering_key => 'key ' || n % 3)) from generate_series(1, 60) as n;
             select count(oncely.emit('', '{queue}', 'free')) from generate_series(1, 60) as n"
        ),
    )
    .await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.events where state = 'parked'", 1).await;
    world.wait_for("select count(*) from oncely.events", 201).await;
    let arrived = bodies(&world.broker, &queue).await;
    assert_eq!(arrived.len(), 121);
    assert!(arrived.contains(&"before".to_owned()) && !arrived.iter().any(|body| body.starts_with("behind")));
    // Mended, and decided: the key goes on where it stood.
    world.broker.bind(&queue, &exchange, "#").await.unwrap();
    run(&mut world, "update oncely.events set state = 'pending', available_at = clock_timestamp(), attempts = 0 where state = 'parked'").await;
    world.wait_for("select count(*) from oncely.events", 0).await;
    let wanted: Vec<String> =
        std::iter::once("head".to_owned()).chain((1..=200).map(|n| format!("behind {n}"))).collect();
    assert_eq!(bodies(&world.broker, &queue).await, wanted);
    world.stop(relay).await;
}

#[tokio::test]
async fn a_key_behind_many_parked_ones_is_found_by_a_relay_that_starts() {
    // A look at the keys ends after ten times as many as a batch has events.
    let mut world = world_with("batch = 1").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    let emit = format!(
        "select oncely.emit('', '{queue}', 'parked', ordering_key => 'a' || n, tenant => 'acme') from generate_series(1, 30) as n;
         update oncely.events set state = 'parked', reason = 'unroutable';
         select oncely.emit('', '{queue}', 'ready', ordering_key => 'z', tenant => 'acme');"
    );
    run(&mut world, &emit).await;
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.events where state = 'pending'", 0).await;
    world.stop(relay).await;
    assert_eq!(bodies(&world.broker, &queue).await, ["ready"]);
}

#[tokio::test]
async fn a_long_row_of_events_goes_out_once_however_slow_the_broker_is() {
    let mut world = world_with("batch = 100").await;
    // PostgreSQL ends a transaction that does nothing for twice as long.
    world.configure("[postgres]\nstatement_timeout = \"3s\"\nlock_timeout = \"3s\"");
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    let (proxy, through) = world.proxied_rabbitmq().await;
    proxy.set(Mode::Delay(Duration::from_millis(150)));
    let emit = format!(
        "select oncely.emit('', '{queue}', n::text, ordering_key => 'k', tenant => 'acme') from generate_series(1, 40) as n"
    );
    run(&mut world, &emit).await;
    let relay = world.start_with("relay", "slow", &[("AMQP_URL", through)]);
    world.wait_within(Duration::from_secs(120), "select count(*) from oncely.events", 0).await;
    world.stop(relay).await;
    let wanted: Vec<String> = (1..=40).map(|n| n.to_string()).collect();
    assert_eq!(bodies(&world.broker, &queue).await, wanted);
}

#[tokio::test]
async fn no_tenants_events_wait_for_younger_ones_of_another_because_of_its_name() {
    let mut world = world_with("lanes = 1").await;
    let queue = world.queue("told");
    world.broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    for (tenant, from, to) in [("a", 1, 30), ("b", 31, 31), ("a", 32, 61)] {
        let emit = format!(
            "select oncely.emit('', '{queue}', n || repeat(' ', 1000000), ordering_key => 'k' || n, tenant => '{tenant}') from generate_series({from}, {to}) as n"
        );
        run(&mut world, &emit).await;
    }
    let relay = world.start("relay");
    world.wait_for("select count(*) from oncely.events", 0).await;
    world.stop(relay).await;
    let arrived = bodies(&world.broker, &queue).await;
    // In the batch in which its turn comes, of eight such large events.
    let place = arrived.iter().position(|body| body.trim_end() == "31");
    assert!(place.is_some_and(|place| (24..40).contains(&place)), "{place:?}");
}
