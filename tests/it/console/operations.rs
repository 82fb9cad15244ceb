//! Operations: what they do is what was looked at, they can be stopped, and what they have decided they carry to its end.

use super::actions::{failed, operate, wait_for};
use super::{Client, console, document, furnish};
use crate::support::World;

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";

/// What the form of a page holds.
async fn form(client: &Client, page: &str) -> Vec<(String, String)> {
    let page = client.page(page).await;
    let mut fields: Vec<(String, String)> = document::elements(&page.body)
        .iter()
        .filter(|element| element.name == "input" && element.get("type") == Some("hidden"))
        .filter_map(|input| Some((input.get("name")?.to_owned(), input.get("value")?.to_owned())))
        .collect();
    fields.dedup();
    fields
}

/// Sends it, filled in.
async fn send(
    client: &Client,
    path: &str,
    form: &[(String, String)],
    filled: &[(&str, &str)],
) -> (u16, String) {
    let form = form.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let fields: Vec<(&str, &str)> = form.chain(filled.iter().copied()).collect();
    let answer = client.post(path, &fields).await;
    let to = answer.header("location").map(str::to_owned);
    (answer.status, to.unwrap_or(answer.body))
}

#[tokio::test]
async fn an_operation_that_is_stopped_carries_to_its_end_what_it_has_decided() {
    let (mut world, worker) = failed(5).await;
    // As if they were over dead_letters.max_body: only their queue has them.
    sqlx::query("update oncely.dead_letters set body = null").execute(&mut world.sql).await.unwrap();
    let (running, operator) = console(&world).await;
    sqlx::query("delete from app.broken").execute(&mut world.sql).await.unwrap();
    let filled = [("note", "slowly"), ("typed", "5"), ("rate", "1")];
    let (status, to) = operate(&operator, "/failed/plan?change=requeue", &filled).await;
    assert_eq!(status, 303, "{to}");
    world.wait_for("select least(count(*), 1) from oncely.dead_letters where state <> 'waiting'", 1).await;
    let id = to.split("id=").nth(1).unwrap();
    assert_eq!(operator.submit("/failed/stop", &[("id", id)]).await.status, 303);
    let told = wait_for(&operator, &to, "<b>Stopped. </b>").await;
    assert!(told.contains("The rest is as it was."), "{told}");
    let waiting = world.count(WAITING).await;
    assert!(waiting > 0, "{told}");
    let requeued = "select count(*) from oncely.dead_letters where state = 'requeued'";
    assert_eq!(world.count(requeued).await, 5 - waiting, "none is left half requeued: {told}");
    world.wait_for("select count(*) from app.effects", 5 - waiting).await;
    let recorded = "select concat_ws('|', actor like '%, console)', filter ->> 'operation') from oncely.operator_actions where verb = 'stop'";
    assert_eq!(world.text(recorded).await, Some(format!("t|{id}")));
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn what_was_not_looked_at_is_not_changed_whatever_their_number() {
    let (mut world, worker) = failed(4).await;
    world.stop(worker).await;
    let (running, operator) = console(&world).await;
    let filled = [("note", "gone"), ("typed", "3"), ("rate", "1000")];
    // By filter: one goes, and one appears that is older than the plan.
    sqlx::query("update oncely.dead_letters set state = 'requeued' where key = 'order-3'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let plan = form(&operator, "/failed/plan?change=discard").await;
    sqlx::query("update oncely.dead_letters set state = case key when 'order-3' then 'waiting' when 'order-0' then 'requeued' else state end")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let (status, told) = send(&operator, "/failed/operate", &plan, &filled).await;
    assert_eq!((status, world.count(WAITING).await), (422, 3), "{told}");
    assert!(told.contains("other letters than the plan showed"), "{told}");
    // By id: it has failed anew since.
    let id = world.text("select id::text from oncely.dead_letters where key = 'order-1'").await.unwrap();
    let plan = form(&operator, &format!("/failed/plan?change=discard&id={id}")).await;
    sqlx::query("update oncely.dead_letters set generation = 2 where key = 'order-1'")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let filled = [("note", "gone"), ("typed", "1")];
    let (status, told) = send(&operator, "/failed/operate", &plan, &filled).await;
    assert_eq!((status, world.count(WAITING).await), (422, 3), "{told}");
    // The plan that was shown again is one of what there is now.
    let (status, told) = operate(&operator, &format!("/failed/plan?change=discard&id={id}"), &filled).await;
    assert_eq!(status, 303, "{told}");
    drop(running);
}

#[tokio::test]
async fn parked_events_that_no_page_showed_are_not_given_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    let plan = form(&operator, "/outbox?state=parked").await;
    // One leaves, and an older one is parked.
    let change = "with gone as (delete from oncely.events where id = (select id from oncely.events order by created_at desc limit 1) returning *)
        insert into oncely.events (tenant, id, created_at, available_at, attempts, state, exchange, routing_key, payload, reason)
        select tenant, gen_random_uuid(), created_at - interval '1 hour', available_at, attempts, state, exchange, routing_key, payload, reason from gone";
    sqlx::query(change).execute(&mut world.sql).await.unwrap();
    let filled = [("change", "discard"), ("note", "gone"), ("typed", "3")];
    let (status, told) = send(&operator, "/outbox/change", &plan, &filled).await;
    assert_eq!(status, 400, "{told}");
    assert!(told.contains("other events than the page showed"), "{told}");
    assert_eq!(world.count("select count(*) from oncely.events where state = 'parked'").await, 3);
    drop(running);
}

#[tokio::test]
async fn an_operation_that_is_under_way_is_not_forgotten_and_only_a_few_run_at_once() {
    let (mut world, worker) = failed(6).await;
    world.stop(worker).await;
    let (running, operator) = console(&world).await;
    // Somebody holds the letters: operations wait for them.
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from oncely.dead_letters for update").execute(&mut holder).await.unwrap();
    let mut begun = Vec::new();
    for number in 0..6 {
        let query = format!("select id::text from oncely.dead_letters where key = 'order-{number}'");
        let id = world.text(&query).await.unwrap();
        let plan = format!("/failed/plan?change=discard&id={id}");
        begun.push(operate(&operator, &plan, &[("note", "gone"), ("typed", "1")]).await);
    }
    drop(holder);
    let (taken, refused): (Vec<_>, Vec<_>) = begun.iter().partition(|(status, _)| *status == 303);
    assert_eq!(taken.len(), 4, "{begun:?}");
    for (status, told) in refused {
        assert!(*status == 422 && told.contains("4 operations are under way"), "{status}: {told}");
    }
    for (_, to) in taken {
        wait_for(&operator, to, "<b>Done. </b>").await;
    }
    drop(running);
}

#[tokio::test]
async fn the_record_of_a_reveal_says_whose_message_was_shown_whatever_the_form_says() {
    let (mut world, worker) = failed(1).await;
    world.stop(worker).await;
    let (running, operator) = console(&world).await;
    let id = world.text("select id::text from oncely.dead_letters").await.unwrap();
    let decoys = [("id", id.as_str()), ("tenant", "someone-else"), ("consumer", "decoy"), ("key", "decoy")];
    assert_eq!(operator.submit("/failed/reveal", &decoys).await.status, 200);
    let recorded = "select concat_ws('|', tenant, filter ->> 'tenant', filter ->> 'consumer', filter ->> 'key', filter ->> 'id')
        from oncely.operator_actions where verb = 'reveal'";
    assert_eq!(world.text(recorded).await, Some(format!("acme|acme|payments|order-0|{id}")));
    drop(running);
}
