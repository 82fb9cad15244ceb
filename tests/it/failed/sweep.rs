//! Sweeps of a dead-letter queue.

use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use testbed::{Process, RawConnection, RawProperties, RawValue};

use super::{dead, failed};
use crate::support::{World, message};

/// A worker whose dead-letter queue is declared anew, as one that loses a message at its fourth return: no worker starts on such a one.
async fn short_lived(world: &World) -> Process {
    world.apply_topology().await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    world.broker.delete_queue(&dead(world)).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(3));
    world.broker.declare_queue(&dead(world), arguments).await.unwrap();
    // It says that this queue is there with other arguments, and declares the rest: the binding to it.
    assert_eq!(world.oncely(&["topology", "apply"]).await.status.code(), Some(1));
    worker
}

#[tokio::test]
async fn letters_that_wait_survive_any_number_of_sweeps_of_a_queue_with_a_delivery_limit() {
    let mut world = World::new().await;
    world.consumer("payments", "queue_type = \"quorum\"");
    let worker = short_lived(&world).await;
    for number in 0..11 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
        // Somebody else's, without a row.
        let stranger = message("acme", &format!("s{number}"));
        world.broker.publish("", &dead(&world), stranger, b"stranger").await.unwrap();
    }
    world.wait_for_ready(&dead(&world), 22).await;
    world.stop(worker).await;
    for _ in 0..25 {
        let pass = failed(&world, 0, &["sweep", "--queue", &world.queue("payments")]).await;
        assert_eq!((&pass["swept"][0]["kept"], &pass["swept"][0]["dropped"]), (&json!(22), &json!(0)));
    }
    let letters = world.broker.take_exactly(&dead(&world), 22).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 22);
}

#[tokio::test]
async fn a_sweep_sends_no_copy_to_the_other_queues_that_a_publisher_named() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let other = world.queue("ledger");
    world.broker.declare_queue(&other, FieldTable::default()).await.unwrap();
    let worker = world.start("worker");
    let mut headers = message("acme", "k1").headers().clone().unwrap();
    let named = vec![AMQPValue::LongString(other.clone().into())];
    headers.insert("CC".into(), AMQPValue::FieldArray(named.into()));
    world.publish("payments", message("acme", "k1").with_headers(headers), r#"{"do": "reject"}"#).await;
    world.wait_for_ready(&dead(&world), 1).await;
    world.wait_for_ready(&other, 1).await;
    world.stop(worker).await;
    for _ in 0..2 {
        let pass = failed(&world, 0, &["sweep", "--queue", &world.queue("payments")]).await;
        assert_eq!(pass["swept"][0]["kept"], json!(1));
    }
    // Confirms come when a message is in all its queues.
    assert_eq!(world.broker.ready(&other).await.unwrap(), 1, "the publisher's own copy");
}

/// Of two headers of a name the broker looks at the first one alone, and a client keeps the second.
#[tokio::test]
async fn a_sweep_takes_no_route_that_a_dead_letter_has_hidden_behind_another() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let other = world.queue("ledger");
    world.broker.declare_queue(&other, FieldTable::default()).await.unwrap();
    let routes = |queues: &[&str]| {
        RawValue::Array(queues.iter().map(|queue| RawValue::text(queue.as_bytes())).collect())
    };
    let hidden = |name: &[u8]| RawProperties {
        headers: Some(vec![(name.to_vec(), routes(&[])), (name.to_vec(), routes(&[&other]))]),
        ..RawProperties::default()
    };
    let (url, exchange) = (world.urls.rabbitmq.clone(), format!("{}.dlx", world.queue("payments")));
    let letters = [hidden(b"CC"), hidden(b"BCC")];
    tokio::task::spawn_blocking(move || {
        let mut raw = RawConnection::open(&url).unwrap();
        for letter in letters {
            raw.publish(&exchange, b"k", &letter.encode(), b"{}").unwrap();
        }
        raw.wait_for_confirms().unwrap();
    })
    .await
    .unwrap();
    world.wait_for_ready(&dead(&world), 2).await;
    for _ in 0..2 {
        let pass = failed(&world, 0, &["sweep", "--queue", &world.queue("payments")]).await;
        assert_eq!(pass["swept"][0]["kept"], json!(2));
    }
    assert_eq!(world.broker.ready(&other).await.unwrap(), 0);
}

#[tokio::test]
async fn two_sweeps_at_once_lose_and_double_nothing() {
    let mut world = World::new().await;
    world.consumer("payments", "queue_type = \"quorum\"");
    let worker = short_lived(&world).await;
    for number in 0..100 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
    }
    world.wait_for_ready(&dead(&world), 100).await;
    world.stop(worker).await;
    sqlx::query("update oncely.dead_letters set state = 'discarded' where key like '%5'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    for _ in 0..5 {
        let queue = world.queue("payments");
        let arguments = ["sweep", "--queue", &queue];
        futures::join!(failed(&world, 0, &arguments), failed(&world, 0, &arguments));
    }
    world.wait_for_ready(&dead(&world), 90).await;
    let letters = world.broker.take_exactly(&dead(&world), 90).await.unwrap();
    let mut keys: Vec<_> =
        letters.iter().map(|l| l.properties.message_id().as_ref().unwrap().to_string()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 90);
}

#[tokio::test]
async fn a_sweep_records_what_has_left_the_queue_when_postgresql_takes_it_again() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    for number in 0..3 {
        world.publish("payments", message("acme", &format!("k{number}")), r#"{"do": "reject"}"#).await;
    }
    world.wait_for_ready(&dead(&world), 3).await;
    world.stop(worker).await;
    // Discarded while the broker's copies wait: their rows are recorded by the sweep alone. Each try is counted, which no rollback takes back.
    let refusing = "create sequence app.tries;
        create function app.refuse() returns trigger language plpgsql as $$
        begin
            if new.swept_at is not null then
                perform nextval('app.tries');
                raise exception using errcode = '53100', message = 'disk full';
            end if;
            return new;
        end $$;
        create trigger refuse before update on oncely.dead_letters for each row execute function app.refuse();
        update oncely.dead_letters set state = 'discarded'";
    sqlx::raw_sql(refusing).execute(&mut world.sql).await.unwrap();
    let (sweep, freed) = tokio::join!(failed(&world, 0, &["sweep"]), async {
        testbed::eventually("the sweep has tried", || async {
            let mut other = world.database.connect().await.unwrap();
            let tries: bool =
                sqlx::query_scalar("select is_called from app.tries").fetch_one(&mut other).await.unwrap();
            if tries { Ok(()) } else { Err("not yet") }
        })
        .await
        .unwrap();
        let mut other = world.database.connect().await.unwrap();
        sqlx::raw_sql("drop trigger refuse on oncely.dead_letters").execute(&mut other).await
    });
    freed.unwrap();
    assert_eq!(sweep["swept"][0]["dropped"], json!(3), "{sweep}");
    assert_eq!(world.count("select count(*) from oncely.dead_letters where swept_at is not null").await, 3);
}
