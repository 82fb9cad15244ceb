//! Marks of dead letters that can't be read.

use lapin::BasicProperties;
use lapin::types::AMQPValue;
use serde_json::json;

use super::{WAITING, dead, failed};
use crate::support::{World, message};

const KEY: &str = "sixteen bytes, or more";
const MARK: &str = "x-oncely-dead-letter-mark";

#[tokio::test]
async fn a_sweep_says_which_marks_it_cannot_read_and_why_and_takes_the_copies_up_when_it_can() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let signing = [("ONCELY_CELL__SIGNING_KEY", KEY.to_owned())];
    let worker = world.start_with("worker", "signs", &signing);
    world.publish("payments", message("acme", "k"), r#"{"do": "reject"}"#).await;
    world.wait_for_ready(&dead(&world), 1).await;
    world.stop(worker).await;

    let letter = world.broker.take_exactly(&dead(&world), 1).await.unwrap().remove(0);
    let headers = letter.properties.headers().clone().unwrap();
    let Some(AMQPValue::LongString(mark)) = headers.inner().get(MARK).cloned() else { panic!("no mark") };
    let mark = mark.to_string();
    let id = mark.split('.').nth(1).unwrap().to_owned();
    let put = async |mark: &str, body: &[u8]| {
        let mut headers = headers.clone();
        headers.insert(MARK.into(), AMQPValue::LongString(mark.into()));
        let properties = BasicProperties::default().with_headers(headers);
        world.broker.publish("", &dead(&world), properties, body).await.unwrap();
    };
    put(&mark, &letter.data).await;
    put(&mark, b"another body").await;
    put(&mark.replacen("1.", "2.", 1), &letter.data).await;
    put("junk", &letter.data).await;

    // The letter is decided. Who does not have the key can't know that the first copy is it.
    let done = failed(&world, 0, &["discard", "--all", "--yes"]).await;
    let swept = &done["swept"][0];
    assert_eq!((&swept["kept"], &swept["dropped"]), (&json!(4), &json!(0)));
    let told = json!({ "unknown_key": 2, "unknown_keys": [id], "unknown_version": 1, "wrong": 1 });
    assert_eq!(swept["unreadable_marks"], told);
    let output = world.oncely(&["failed", "sweep"]).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for told in [
        format!("2 of those that stay: marked with a key that is not accepted (id {id})"),
        "add it to known_keys in [cell]".to_owned(),
        "1 of those that stay: marked in a version that this program does not know".to_owned(),
        "1 of those that stay: marked for another message, or forged".to_owned(),
    ] {
        assert!(text.contains(&told), "{told} is not in {text}");
    }

    world.configure(&format!("[cell]\nknown_keys = [{KEY:?}]"));
    let swept = failed(&world, 0, &["sweep"]).await["swept"][0].clone();
    assert_eq!((&swept["kept"], &swept["dropped"]), (&json!(3), &json!(1)));
    let told = json!({ "unknown_key": 0, "unknown_keys": [], "unknown_version": 1, "wrong": 2 });
    assert_eq!(swept["unreadable_marks"], told);
    world.wait_for_ready(&dead(&world), 3).await;
}

#[tokio::test]
async fn a_worker_that_cannot_read_the_mark_of_what_was_requeued_says_so_in_its_new_row() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    // Without a key there is nothing but its mark to know it by.
    let headers = message("acme", "").headers().clone().unwrap();
    world.publish("payments", BasicProperties::default().with_headers(headers), "{}").await;
    world.wait_for(WAITING, 1).await;
    // The operator signs with a key that the worker, which runs since before, does not have.
    world.configure(&format!("[cell]\nsigning_key = {KEY:?}"));
    failed(&world, 0, &["requeue", "--all", "--yes"]).await;
    let told = "select count(*) from oncely.dead_letters where state = 'waiting' and reason = 'key_missing'
        and detail like '%its mark is signed with the key % which is not accepted here (oncely secrets list; cell.known_keys)'";
    world.wait_for(told, 1).await;
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.dead_letters").await,
        2,
        "the first one stands as requeued"
    );
}
