//! Headers of a message.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};

use super::{LARGE, LIMIT, SLOW, serves, until};
use crate::support::{World, message};

fn voids(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("x".into(), AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; count])));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

/// Headers of one header each with tables of one entry, one in another.
fn chains(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    for number in 0..count {
        let mut value = AMQPValue::Void;
        for _ in 0..62 {
            let mut outer = FieldTable::default();
            outer.insert("a".into(), value);
            value = AMQPValue::FieldTable(outer);
        }
        headers.insert(ShortString::from(format!("{number:x}")), value);
    }
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

/// One header that takes six times as much as JSON.
fn controls(key: &str) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    headers.insert("x".into(), AMQPValue::LongString("\u{1}".repeat(87_000).into()));
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

fn many(key: &str, count: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
    for number in 0..count {
        headers.insert(ShortString::from(format!("{number:x}")), AMQPValue::Void);
    }
    BasicProperties::default().with_message_id(key.into()).with_headers(headers)
}

#[tokio::test]
async fn no_headers_end_a_worker_in_256_mib() {
    let mut world = World::new().await;
    world.limit_memory(LIMIT);
    sqlx::raw_sql(SLOW).execute(&mut world.sql).await.unwrap();
    world.consumer("payments", "batch = 50\nhandler = { function = \"app.slow\" }");
    world.apply_topology().await;
    // The others come while both lanes are at work on these.
    let slow = format!("{{\"text\":\"{}\"}}", "x".repeat(LARGE / 3));
    for number in 0..2 {
        world.publish("payments", message("slow", &format!("k{number}")), &slow).await;
    }
    for number in 0..60 {
        for properties in [
            voids(&format!("voids-{number}"), 120_000),
            many(&format!("many-{number}"), 16_000),
            // As many as are read, and as many as are taken.
            voids(&format!("read-{number}"), 8_000),
            voids(&format!("taken-{number}"), 4_094),
            chains(&format!("chains-{number}"), 130),
            chains(&format!("few-chains-{number}"), 9),
            controls(&format!("controls-{number}")),
        ] {
            world.publish("payments", properties, "{}").await;
        }
    }
    let mut worker = world.start("worker");
    serves(&mut world, &mut worker, "after").await;
    until(&mut world, &mut worker, "select count(*) from app.effects where tenant = 'acme'", 180).await;
    let refused = "select count(*) from oncely.audit where reason = 'headers_too_large'";
    until(&mut world, &mut worker, refused, 240).await;
    serves(&mut world, &mut worker, "last").await;
    world.stop(worker).await;
}
