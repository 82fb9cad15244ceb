//! What an operator does: requeue and discard, reveal, pause and resume, events.

use std::time::Duration;

use testbed::eventually;

use super::{Client, console, document, encoded, furnish};
use crate::leases::{hold, let_it_run_out};
use crate::support::{World, message};

/// A handler that fails as long as somebody says so.
const FRAGILE: &str = "
    create table app.broken (is_broken boolean);
    insert into app.broken values (true);
    create function app.fragile(message oncely.message) returns jsonb language plpgsql as $$
    begin
        if (select bool_or(is_broken) from app.broken) then
            perform oncely.reject(format('account %s is closed', message.key));
        end if;
        return app.handle(message);
    end
    $$";

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";

/// A worker, and as many dead letters of one group.
pub(super) async fn failed(count: usize) -> (World, testbed::Process) {
    let mut world = World::new().await;
    sqlx::raw_sql(FRAGILE).execute(&mut world.sql).await.unwrap();
    world.configure("[console]\nmask = [\"/card/number\"]");
    world.consumer(
        "payments",
        "handler = { function = \"app.fragile\" }\nretry = { delays = [\"100ms\"], max_attempts = 1 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    for number in 0..count {
        let body = format!(r#"{{"amount": {number}, "card": {{"number": "4111"}}, "secret": "geheim"}}"#);
        world.publish("payments", message("acme", &format!("order-{number}")), &body).await;
    }
    world.wait_for(WAITING, i64::try_from(count).unwrap()).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), u32::try_from(count).unwrap()).await;
    (world, worker)
}

/// Goes from a plan to its operation as a browser does: all fields of the form, and what is filled in.
pub(super) async fn operate(client: &Client, plan: &str, filled: &[(&str, &str)]) -> (u16, String) {
    let page = client.page(plan).await;
    let mut fields: Vec<(String, String)> = document::elements(&page.body)
        .iter()
        .filter(|element| element.name == "input" && element.get("type") == Some("hidden"))
        .filter_map(|input| Some((input.get("name")?.to_owned(), input.get("value")?.to_owned())))
        .collect();
    // The first token is the one of the form that signs out: the session's all the same.
    fields.dedup();
    fields.extend(filled.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let answer = client.post("/failed/operate", &fields).await;
    let to = answer.header("location").map(str::to_owned);
    (answer.status, to.unwrap_or(answer.body))
}

pub(super) async fn wait_for(client: &Client, path: &str, part: &str) -> String {
    eventually(&format!("{path} says {part:?}"), || async {
        let answer = client.get(path).await;
        match answer.status == 200 && answer.body.contains(part) {
            true => Ok(answer.body),
            false => Err(anyhow::anyhow!("{}: {}", answer.status, answer.body)),
        }
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_group_is_planned_agreed_to_by_its_count_and_runs_again_with_a_result_for_each() {
    let (mut world, worker) = failed(5).await;
    let (running, operator) = console(&world).await;
    let groups = operator.page("/failed").await;
    assert!(
        groups.body.contains("5 waiting in 1 group.") && groups.body.contains("account order-"),
        "{}",
        groups.body
    );
    let plan = document::elements(&groups.body)
        .into_iter()
        .find_map(|element| {
            element.get("href").filter(|href| href.contains("change=requeue")).map(str::to_owned)
        })
        .unwrap();
    assert!(operator.page(&plan).await.body.contains("5 dead letters"));
    for (filled, said) in [
        (&[("note", "mended"), ("typed", "4")][..], "there are 5 now"),
        (&[("note", "mended")], "there are 5 now"),
        (&[("note", "  "), ("typed", "5")], "A reason is required."),
    ] {
        let (status, told) = operate(&operator, &plan, filled).await;
        assert!(status == 422 && told.contains(said), "{status}: {told}");
    }
    assert_eq!(world.count(WAITING).await, 5, "nothing was changed");
    // One more comes between the plan and the agreement: it is not meant.
    let page = operator.page(&plan).await;
    world.publish("payments", message("acme", "late"), r#"{"amount": 9}"#).await;
    world.wait_for(WAITING, 6).await;
    let until = page.between("name=\"until\" value=\"", "\"").to_owned();
    sqlx::query("delete from app.broken").execute(&mut world.sql).await.unwrap();
    let (status, to) = operate(
        &operator,
        &format!("{plan}&until={until}"),
        &[("note", "account reopened"), ("typed", "5"), ("rate", "1000")],
    )
    .await;
    assert_eq!(status, 303, "{to}");
    let done = wait_for(&operator, &to, "<b>Done. </b>").await;
    document::check(&to, &done);
    assert!(done.contains("5 published of 5.") && done.matches("● published").count() == 5, "{done}");
    assert!(done.contains("Came back: <b>0</b> of 5."), "{done}");
    assert!(done.contains(": 5 gone, 0 requeued from there, 1 stay"), "{done}");
    world.wait_for("select count(*) from app.effects", 5).await;
    world.wait_for(WAITING, 1).await;
    let recorded = "select concat_ws('|', actor like '%, console)', count, reason, filter ->> 'group' is not null, filter ->> 'operation' is not null)
        from oncely.operator_actions where verb = 'requeue'";
    assert_eq!(world.text(recorded).await.as_deref(), Some("t|5|account reopened|t|t"));
    let failed = operator.page("/failed").await;
    assert!(
        failed.body.contains("Operations of this console") && failed.body.contains("1 waits")
            || failed.body.contains("1 waiting.")
    );
    wait_for(&operator, "/", "account reopened").await;
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn what_comes_back_after_a_requeue_is_counted() {
    let (mut world, worker) = failed(3).await;
    let (running, operator) = console(&world).await;
    // Nothing was mended.
    let (_, to) = operate(
        &operator,
        "/failed/plan?change=requeue",
        &[("note", "try"), ("typed", "3"), ("rate", "1000")],
    )
    .await;
    wait_for(&operator, &to, "Came back: <b>3</b> of 3.").await;
    world
        .wait_for("select count(*) from oncely.dead_letters where generation = 2 and state = 'waiting'", 3)
        .await;
    assert!(operator.page("/failed").await.body.contains("3 of 3"));
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn an_operation_that_is_stopped_leaves_the_rest_as_it_was() {
    let (mut world, worker) = failed(6).await;
    let (running, operator) = console(&world).await;
    sqlx::query("delete from app.broken").execute(&mut world.sql).await.unwrap();
    // One a second: it can be stopped in the middle.
    let (status, to) = operate(
        &operator,
        "/failed/plan?change=requeue",
        &[("note", "slowly"), ("typed", "6"), ("rate", "1")],
    )
    .await;
    assert_eq!(status, 303, "{to}");
    world.wait_for("select count(*) from app.effects", 1).await;
    let id = to.split("id=").nth(1).unwrap();
    assert_eq!(operator.submit("/failed/stop", &[("id", id)]).await.status, 303);
    let told = wait_for(&operator, &to, "<b>Stopped. </b>").await;
    assert!(told.contains("The rest is as it was."), "{told}");
    let waiting = world.count(WAITING).await;
    let done = world.count("select count(*) from oncely.dead_letters where state = 'requeued'").await;
    assert!(waiting > 0 && done > 0 && waiting + done == 6, "{waiting} wait, {done} are done");
    assert_eq!(
        world.count("select sum(count)::bigint from oncely.operator_actions where verb = 'requeue'").await,
        done
    );
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn a_console_that_is_told_to_end_finishes_its_step_and_leaves_nothing_half_done() {
    let (mut world, worker) = failed(6).await;
    let (running, operator) = console(&world).await;
    sqlx::query("delete from app.broken").execute(&mut world.sql).await.unwrap();
    operate(&operator, "/failed/plan?change=requeue", &[("note", "slowly"), ("typed", "6"), ("rate", "1")])
        .await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let mut process = running.process;
    let ended = process.terminate(Duration::from_secs(20)).await.unwrap();
    assert_eq!(ended.code(), Some(0), "{}", process.output());
    assert_eq!(world.count("select count(*) from oncely.dead_letters where state = 'requeueing'").await, 0);
    assert!(world.count(WAITING).await > 0);
    world.stop(worker).await;
}

#[tokio::test]
async fn a_broker_that_is_away_breaks_a_requeue_off_before_anything_is_changed() {
    let (mut world, worker) = failed(2).await;
    world.stop(worker).await;
    world.urls.rabbitmq = "amqp://someone:tops3cret@127.0.0.1:1/%2f".to_owned();
    let (running, operator) = console(&world).await;
    let (_, to) = operate(&operator, "/failed/plan?change=requeue", &[("note", "why"), ("typed", "2")]).await;
    let told = wait_for(&operator, &to, "<b>Broken off. </b>").await;
    assert!(told.contains("nothing was changed") && !told.contains("tops3cret"), "{told}");
    assert_eq!(world.count(WAITING).await, 2);
    // The sentence on the others.
    let overview = operator.page("/").await;
    assert!(overview.body.contains("RabbitMQ does not answer"), "{}", overview.body);
    drop(running);
}

#[tokio::test]
async fn discarded_letters_leave_and_do_not_run() {
    let (mut world, worker) = failed(2).await;
    let (running, operator) = console(&world).await;
    sqlx::query("delete from app.broken").execute(&mut world.sql).await.unwrap();
    let id = world.text("select id::text from oncely.dead_letters where key = 'order-1'").await.unwrap();
    let (status, to) = operate(
        &operator,
        &format!("/failed/plan?change=discard&id={id}"),
        &[("note", "a test order"), ("typed", "1")],
    )
    .await;
    assert_eq!(status, 303, "{to}");
    let told = wait_for(&operator, &to, "<b>Done. </b>").await;
    assert!(told.contains("1 discarded of 1."), "{told}");
    assert_eq!(
        world.text("select string_agg(state, ',' order by key) from oncely.dead_letters").await.as_deref(),
        Some("waiting,discarded")
    );
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 1).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 0);
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn a_message_is_outlined_until_somebody_reveals_it_and_that_is_recorded_before_it_is_shown() {
    let (mut world, worker) = failed(1).await;
    let (running, operator) = console(&world).await;
    let id = world.text("select id::text from oncely.dead_letters").await.unwrap();
    let path = format!("/failed/letter?id={id}");
    let page = document::plain(&operator.page(&path).await.body);
    assert!(page.contains("\"secret\": \"••• text of 6\"") && page.contains("x-tenant-id"), "{page}");
    assert!(
        !page.contains("geheim") && !page.contains("4111") && !page.contains("\"x-tenant-id\": \"acme\""),
        "{page}"
    );
    let revealed = operator.submit("/failed/reveal", &[("id", &id), ("tenant", "acme")]).await;
    let shown = document::plain(&revealed.body);
    assert!(revealed.status == 200 && shown.contains("\"secret\": \"geheim\""), "{shown}");
    assert!(shown.contains("\"number\": \"•••\"") && !shown.contains("4111"), "masked at any depth: {shown}");
    document::check("/failed/reveal", &revealed.body);
    let recorded = "select concat_ws('|', tenant, actor like '%, console)', filter ->> 'id') from oncely.operator_actions where verb = 'reveal'";
    assert_eq!(world.text(recorded).await, Some(format!("acme|t|{id}")));
    // Neither what nobody may record, nor what is not there.
    assert_eq!(
        operator.submit("/failed/reveal", &[("id", "00000000-0000-0000-0000-000000000000")]).await.status,
        404
    );
    world.stop(worker).await;
    drop(running);
}

#[tokio::test]
async fn an_encrypted_body_is_revealed_where_the_console_has_its_key_and_its_key_is_named_where_it_has_not() {
    let mut world = World::new().await;
    let path = world.file().with_file_name("keys.toml");
    std::fs::write(&path, format!("[[keys]]\nid = \"key-1\"\nkey = \"{}\"", "5e".repeat(32))).unwrap();
    let section = format!("[encryption]\nkeys = {:?}\n", path.display().to_string());
    world.configure(&section);
    world.consumer("payments", "retry = { max_attempts = 1 }");
    world.apply_topology().await;
    let worker = world.start("worker");
    world.publish("payments", message("acme", "k"), r#"{"do": "reject", "secret": "geheim"}"#).await;
    world.wait_for(WAITING, 1).await;
    world.stop(worker).await;
    let id = world.text("select id::text from oncely.dead_letters").await.unwrap();
    let (running, operator) = console(&world).await;
    let page = document::plain(&operator.page(&format!("/failed/letter?id={id}")).await.body);
    assert!(page.contains("\"secret\": \"••• text of 6\"") && !page.contains("geheim"), "{page}");
    let revealed = operator.submit("/failed/reveal", &[("id", &id), ("tenant", "acme")]).await;
    assert!(document::plain(&revealed.body).contains("\"secret\": \"geheim\""), "{}", revealed.body);
    drop(running);
    world.reconfigure(&section, "");
    let (running, operator) = console(&world).await;
    let page = document::plain(&operator.page(&format!("/failed/letter?id={id}")).await.body);
    assert!(page.contains("It is encrypted with key \"key-1\", which this process does not have"), "{page}");
    drop(running);
}

#[tokio::test]
async fn a_consumer_is_paused_with_a_reason_and_an_end_and_resumed() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    for (fields, status) in [
        (&[("name", "payments")][..], 400),
        (&[("name", "payments"), ("reason", "  "), ("for", "1h")], 400),
        (&[("name", "nobody"), ("reason", "why"), ("for", "until-resumed")], 400),
        (&[("name", "payments"), ("reason", "why")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "2020-01-01")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "yesterday")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "0s")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "11y")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "-1h")], 400),
        (&[("name", "payments"), ("reason", "why"), ("for", "soon")], 400),
        (&[("reason", "why"), ("for", "1h")], 400),
    ] {
        let answer = operator.submit("/consumer/pause", fields).await;
        assert_eq!(answer.status, status, "{fields:?}: {}", answer.body);
    }
    assert_eq!(world.count("select count(*) from oncely.controls").await, 0);
    let forever = [("name", "payments"), ("reason", "why"), ("for", "until-resumed")];
    assert_eq!(operator.submit("/consumer/pause", &forever).await.status, 303);
    assert_eq!(world.count("select count(*) from oncely.controls where paused_until is null").await, 1);
    sqlx::raw_sql("delete from oncely.controls; delete from oncely.operator_actions")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let reason = "month-end <b>closing</b>";
    let done =
        operator.submit("/consumer/pause", &[("name", "payments"), ("reason", reason), ("for", "1h")]).await;
    assert_eq!((done.status, done.header("location")), (303, Some("/consumer?name=payments")));
    let end = "select extract(epoch from paused_until - paused_at)::bigint from oncely.controls";
    assert_eq!(world.count(end).await, 3_600);
    for path in ["/consumer?name=payments", "/", "/consumers", "/doctor"] {
        let page = operator.page(path).await;
        assert!(page.body.contains("paused"), "{path}");
        assert!(!page.body.contains("<b>closing"), "{path}");
    }
    let page = operator.page("/consumer?name=payments").await;
    assert!(
        page.body.contains("month-end &lt;b&gt;closing&lt;/b&gt;") && page.body.contains("Resume"),
        "{}",
        page.body
    );
    assert_eq!(operator.submit("/consumer/resume", &[("name", "payments")]).await.status, 303);
    assert_eq!(world.count("select count(*) from oncely.controls").await, 0);
    assert!(operator.page("/consumer?name=payments").await.body.contains("Pause</button>"));
    let actions = "select string_agg(verb, ',' order by occurred_at) from oncely.operator_actions where actor like '%, console)'";
    assert_eq!(world.text(actions).await.as_deref(), Some("pause,resume"));
    assert_eq!(operator.get(&format!("/consumer?name={}", encoded("<script>"))).await.status, 404);
    drop(running);
}

#[tokio::test]
async fn what_somebody_else_is_changing_is_called_that() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    sqlx::raw_sql("select oncely.pause_consumer('payments', null, 'why', 'me')")
        .execute(&mut world.sql)
        .await
        .unwrap();
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select oncely.pause_consumer('payments', null, 'because', 'bo')")
        .execute(&mut holder)
        .await
        .unwrap();
    let pause = [("name", "payments"), ("reason", "why"), ("for", "1h")];
    for (path, fields) in [("/consumer/pause", &pause[..]), ("/consumer/resume", &[("name", "payments")])] {
        let answer = operator.submit(path, fields).await;
        assert_eq!(answer.status, 409, "{path}: {}", answer.body);
        assert!(answer.body.contains("Locked by another session"), "{path}: {}", answer.body);
    }
    drop(holder);
    drop(running);
}

#[tokio::test]
async fn parked_events_are_tried_again_or_given_up_by_their_count() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let (running, operator) = console(&world).await;
    let page = operator.page("/outbox?state=parked").await;
    assert!(page.body.contains("These 3 parked events"), "{}", page.body);
    let before = page.between("name=\"before\" value=\"", "\"").to_owned();
    let digest = page.between("name=\"digest\" value=\"", "\"").to_owned();
    let change = async |verb: &str, typed: &str| {
        let fields = [
            ("change", verb),
            ("note", "bound again"),
            ("typed", typed),
            ("before", before.as_str()),
            ("digest", digest.as_str()),
        ];
        operator.submit("/outbox/change", &fields).await
    };
    assert_eq!(change("retry", "2").await.status, 400);
    assert_eq!(world.count("select count(*) from oncely.events where state = 'parked'").await, 3);
    assert_eq!(change("retry", "3").await.status, 303);
    assert_eq!(
        world.count("select count(*) from oncely.events where state = 'pending' and attempts = 0").await,
        3
    );
    let recorded = "select concat_ws('|', tenant, count, reason) from oncely.operator_actions where verb = 'retry_events'";
    assert_eq!(world.text(recorded).await.as_deref(), Some("acme|3|bound again"));
    drop(running);
}

#[tokio::test]
async fn the_doctor_runs_when_somebody_looks_and_when_an_operator_says_so() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7 days").await;
    let (_running, operator) = console(&world).await;
    operator.page("/doctor").await;
    // Nobody has made the queue.
    wait_for(&operator, "/doctor", "mq.queue").await;
    let first = operator.page("/doctor").await;
    assert!(
        first.body.contains("docs/src/how-to/doctor.md#mqqueue") && first.body.contains("Fix: "),
        "{}",
        first.body
    );
    let again = || async {
        let begun = operator.submit("/doctor/run", &[]).await;
        assert_eq!((begun.status, begun.header("location")), (303, Some("/doctor#checks-title")));
    };
    world.apply_topology().await;
    // Ten seconds after the last one began, at the soonest.
    eventually("the queue is there", || async {
        again().await;
        let page = operator.page("/doctor").await.body;
        let bad = page
            .split_once("id=\"bad-checks\"")
            .and_then(|(_, rest)| rest.split_once("</ul>"))
            .map(|(bad, _)| bad.to_owned());
        match bad {
            Some(bad) if !bad.contains("mq.queue") => Ok(()),
            other => Err(other),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_key_is_taken_from_its_run_by_whoever_has_read_what_that_means() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("delete from oncely.idempotency_keys").execute(&mut holder).await.unwrap();
    let token = hold(&mut holder, ("acme", "payments", "order-1182")).await;
    hold(&mut holder, ("acme", "payments", "gone")).await;
    let_it_run_out(&mut holder, "gone").await;
    let begin =
        format!("select oncely.begin_step('acme', 'payments', 'order-1182', {token}, 'charge', 'never')");
    sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut holder).await.unwrap();
    let (running, operator) = console(&world).await;
    for (path, part) in [
        ("/consumers", "1 over"),
        ("/consumer?name=payments", "2 held by leases"),
        ("/leases", "run of order-1182"),
        ("/leases?over=1", "over for"),
        ("/leases?consumer=elsewhere", "No run holds a key like that"),
        ("/key?tenant=acme&consumer=payments&key=order-1182", "held by"),
        ("/key?tenant=acme&consumer=payments&key=order-1182", "started"),
        ("/lease?tenant=acme&consumer=payments&key=order-1182", "must not be repeated"),
        ("/lease?tenant=acme&consumer=payments&key=nothing", "No run holds this key"),
    ] {
        let page = operator.page(path).await;
        assert!(page.body.contains(part), "no {part:?} on {path}: {}", page.body);
    }
    assert_eq!(operator.get("/leases?after=nonsense").await.status, 400);
    assert_eq!(operator.get("/lease?key=order-1182").await.status, 400);
    let page = operator.page("/leases?over=1").await;
    assert!(!page.body.contains("order-1182"), "it is not over");

    let token = token.to_string();
    let named = [("tenant", "acme"), ("consumer", "payments"), ("key", "order-1182")];
    let held = "select count(*) from oncely.idempotency_keys where owner is not null";
    for (fields, said) in [
        (&[("token", token.as_str()), ("typed", "1")][..], "A reason is required."),
        (&[("token", token.as_str()), ("note", "host is gone")], "type 1 to confirm"),
        (&[("token", "1"), ("typed", "1"), ("note", "host is gone")], "another run holds the key"),
        (&[("typed", "1"), ("note", "host is gone")], "another run holds the key"),
    ] {
        let answer = operator.submit("/lease/release", &[&named[..], fields].concat()).await;
        assert_eq!(answer.status, 422, "{fields:?}: {}", answer.body);
        assert!(answer.body.contains(said), "{fields:?}: {}", answer.body);
    }
    assert_eq!(world.count(held).await, 2);
    let agreed = [("token", token.as_str()), ("typed", "1"), ("note", "host is gone")];
    let answer = operator.submit("/lease/release", &[&named[..], &agreed].concat()).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, Some("/key?tenant=acme&consumer=payments&key=order-1182"))
    );
    assert_eq!(world.count(held).await, 1);
    let record = "select count(*) from oncely.operator_actions where verb = 'revoke_lease' and actor like '%, console)' and reason = 'host is gone'";
    assert_eq!(world.count(record).await, 1);
    let answer = operator.submit("/lease/release", &[&named[..], &agreed].concat()).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    drop(running);
}
