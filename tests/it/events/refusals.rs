//! What the broker refuses: nothing is lost, the rest flows, and the operator sees why.

use std::collections::BTreeSet;

use lapin::ExchangeKind;
use lapin::types::{AMQPValue, FieldTable};
use testbed::{Broker, RabbitMq, VirtualHost};

use super::{bodies, parked_beside, run, world_with};
use crate::support::{World, servers};

fn full_after(messages: i32) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(messages));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    arguments
}

#[tokio::test]
async fn what_the_broker_refuses_is_parked_with_its_reason_and_holds_up_nobody() {
    let mut world = world_with("").await;
    let (good, full) = (world.queue("good"), world.queue("full"));
    let (unbound, missing) = (world.queue("unbound"), world.queue("missing"));
    world.broker.declare_queue(&good, FieldTable::default()).await.unwrap();
    world.broker.declare_queue(&full, full_after(1)).await.unwrap();
    world.broker.declare_exchange(&unbound, ExchangeKind::Topic).await.unwrap();
    // Not as an event: published again with its neighbours, it would find the queue full of itself.
    world.broker.publish("", &full, lapin::BasicProperties::default(), b"fills it").await.unwrap();
    // Each kind between good ones, and one with the message_id of a good one.
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{good}', 'good ' || n, message_id => 'same') from generate_series(1, 50) as n;
             select oncely.emit('{unbound}', 'x', 'unbound', message_id => 'same');
             select oncely.emit('{missing}', 'x', 'missing ' || n) from generate_series(1, 3) as n;
             select oncely.emit('', 'no-such-queue-{good}', 'no queue');
             select oncely.emit('', '{good}', 'bad');
             -- As before oncely.emit refused it.
             update oncely.events set headers = '{{\"CC\": \"not a list\"}}' where payload = 'bad';
             select oncely.emit('', '{good}', 'more ' || n) from generate_series(1, 50) as n;"
        ),
    )
    .await;
    let relay = world.start("relay");
    // What arrives meanwhile is their witness.
    parked_beside(&mut world, &good, 6).await;
    run(&mut world, &format!("select oncely.emit('', '{full}', 'too many')")).await;
    parked_beside(&mut world, &good, 7).await;
    world.wait_for("select count(*) from oncely.events", 7).await;
    let mut arrived = bodies(&world.broker, &good).await;
    arrived.retain(|body| body != "witness");
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 100);
    let parked = world
        .text("select string_agg(convert_from(payload, 'UTF8') || ': ' || reason || ' after ' || attempts, ', ' order by convert_from(payload, 'UTF8')) from oncely.events")
        .await
        .unwrap();
    assert_eq!(
        parked,
        "bad: precondition_failed after 1, missing 1: exchange_missing after 3, missing 2: exchange_missing after 3, \
         missing 3: exchange_missing after 3, no queue: unroutable after 3, too many: nacked after 3, unbound: unroutable after 3"
    );
    let said = world.text("select string_agg(distinct last_error, '; ') from oncely.events").await.unwrap();
    assert!(said.contains("no queue is bound") && said.contains("NOT_FOUND"), "{said}");
    world.stop(relay).await;
}

/// RabbitMQ's channels remember where a quorum queue's leader was: one that was opened in the wrong moment nacks for ever.
#[tokio::test]
async fn what_a_channel_nacked_is_tried_again_on_another_one() {
    let rabbitmq = RabbitMq::start().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = rabbitmq.url();
    let mut world = World::on(urls).await;
    world.configure(
        "[relay]\npoll = \"20ms\"\n[events]\nlanes = 1\nretry = { delays = [\"100ms\"], max_attempts = 1000 }",
    );
    let full = world.queue("full");
    world.broker.declare_queue(&full, full_after(1)).await.unwrap();
    world.broker.publish("", &full, lapin::BasicProperties::default(), b"fills it").await.unwrap();
    run(&mut world, &format!("select oncely.emit('', '{full}', 'too many')")).await;
    let relay = world.start("relay");
    world.wait_for_line(&relay, "reason=\"nacked\"").await;
    let mut seen = Vec::new();
    for tries in [3, 6] {
        world.wait_for_lines(&relay, "reason=\"nacked\"", tries).await;
        let channels = rabbitmq.ctl(&["list_channels", "--silent", "pid"]).await.unwrap();
        seen.push(channels.lines().map(str::to_owned).collect::<BTreeSet<_>>());
    }
    // Ours alone.
    assert_eq!(seen[0].intersection(&seen[1]).count(), 1, "{seen:?}");
    world.stop(relay).await;
}

/// A fault of the relay's user, of the queue, and of the exchange, each for longer than all attempts last.
#[tokio::test]
async fn what_strikes_all_events_for_a_while_parks_none_and_they_arrive_in_order() {
    let rabbitmq = VirtualHost::create().await.unwrap();
    let user = rabbitmq.name();
    rabbitmq.user(user, "relay").await.unwrap();
    rabbitmq.permit(user, [".*"; 3]).await.unwrap();
    let mut world = world_with("").await;
    world.broker = Broker::connect(&rabbitmq.url()).await.unwrap();
    world.urls.rabbitmq = rabbitmq.url_as(user, "relay");
    world.configure("");
    let (queue, exchange) = (world.queue("told"), world.queue("exchange"));
    world.broker.declare_queue(&queue, full_after(20)).await.unwrap();
    let bound = async |world: &World| {
        world.broker.declare_exchange(&exchange, ExchangeKind::Topic).await.unwrap();
        world.broker.bind(&queue, &exchange, "x").await.unwrap();
    };
    bound(&world).await;
    let relay = world.start("relay");
    let mut expected = Vec::new();
    for fault in ["right", "full", "exchange", "binding"] {
        match fault {
            "right" => rabbitmq.permit(user, [".*", "^nothing$", ".*"]).await.unwrap(),
            "full" => {
                for _ in 0..20 {
                    let properties = lapin::BasicProperties::default();
                    world.broker.publish("", &queue, properties, b"fills it").await.unwrap();
                }
            }
            "exchange" => world.broker.delete_exchange(&exchange).await.unwrap(),
            _ => world.broker.unbind(&queue, &exchange, "x").await.unwrap(),
        }
        run(
            &mut world,
            &format!("select oncely.emit('{exchange}', 'x', '{fault} ' || n, ordering_key => case when n > 5 then 'k' end) from generate_series(1, 10) as n"),
        )
        .await;
        world.wait_for("select count(*) from oncely.events where last_error is not null", 6).await;
        // For as long as the fault lasts: longer than three attempts.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        assert_eq!(
            world.count("select count(*) from oncely.events where state = 'pending' and attempts = 0").await,
            10,
            "{fault}: {}",
            relay.output()
        );
        match fault {
            "right" => {
                rabbitmq.permit(user, [".*"; 3]).await.unwrap();
            }
            "full" => world.broker.purge(&queue).await.unwrap(),
            _ => bound(&world).await,
        }
        world.wait_for("select count(*) from oncely.events", 0).await;
        let arrived = bodies(&world.broker, &queue).await;
        let ordered = arrived.iter().filter(|body| expected_ordered(fault).contains(body)).cloned();
        assert_eq!(ordered.collect::<Vec<_>>(), expected_ordered(fault), "{arrived:?}");
        expected.push(arrived.len());
    }
    assert_eq!(expected, [10; 4]);
    world.stop(relay).await;
}

/// Those with an ordering key.
fn expected_ordered(fault: &str) -> Vec<String> {
    (6..=10).map(|number| format!("{fault} {number}")).collect()
}

/// Makes the relay's statements about events that have arrived fail with one of these SQLSTATEs. Counts them, which no rollback takes back.
const RAISING: &str = "create table app.codes (code text);
    create sequence app.struck;
    create function app.strike() returns trigger language plpgsql security definer as $$
    declare
        chosen text := (select code from app.codes order by random() limit 1);
    begin
        if chosen is null then return null; end if;
        perform nextval('app.struck');
        raise exception using errcode = chosen, message = 'broken';
    end $$;
    create trigger strike before delete or update on oncely.events for each statement execute function app.strike()";

#[tokio::test]
async fn whatever_sqlstates_the_relay_meets_for_a_while_no_event_is_parked() {
    let mut world = world_with("").await;
    run(&mut world, RAISING).await;
    sqlx::query("insert into app.codes select unnest($1::text[])")
        .bind(crate::blame::environment::any_sqlstates())
        .execute(&mut world.sql)
        .await
        .unwrap();
    let (good, missing) = (world.queue("good"), world.queue("missing"));
    world.broker.declare_queue(&good, FieldTable::default()).await.unwrap();
    // One that is refused is counted by a statement that fails, too.
    run(
        &mut world,
        &format!(
            "select oncely.emit('', '{good}', 'event ' || n, ordering_key => case when n > 5 then 'k' end) from generate_series(1, 10) as n;
             select oncely.emit('{missing}', 'x', 'missing')"
        ),
    )
    .await;
    let relay = world.start("relay");
    world.wait_for("select (last_value >= 5)::integer::bigint from app.struck", 1).await;
    let untouched = "select count(*) from oncely.events where state = 'pending' and attempts = 0";
    assert_eq!(world.count(untouched).await, 11, "{}", relay.output());
    run(&mut world, "truncate app.codes").await;
    let left = "select count(*) from oncely.events where exchange = ''";
    world.wait_for(left, 0).await;
    let mut arrived = bodies(&world.broker, &good).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 10, "{arrived:?}");
    world.stop(relay).await;
}
