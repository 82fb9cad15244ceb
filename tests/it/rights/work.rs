//! What each role is there for works with that role alone.

use lapin::types::FieldTable;

use super::run;
use crate::support::{Login, World, message};

#[tokio::test]
async fn messages_that_succeed_fail_come_back_and_are_answered_need_no_more_than_the_roles() {
    let mut world = World::new().await;
    world.configure("[relay]\npoll = \"20ms\"\n[gc]\nbatch = 3");
    world.consumer("payments", "replies = true\nretention = \"10d\"\nredelivery_horizon = \"1h\"");
    world.apply_topology().await;
    let mut logins = Vec::new();
    for role in ["oncely_worker", "oncely_relay", "oncely_operator", "oncely_auditor"] {
        logins.push(Login::create(&mut world, role).await);
    }
    let [worker_login, relay_login, operator, auditor] = &logins[..] else { panic!("four roles") };
    run(
        &mut world,
        &format!("grant usage on schema app to {0}; grant insert on app.effects to {0}", worker_login.name),
    )
    .await;
    let answers = world.queue("answers");
    world.broker.declare_queue(&answers, FieldTable::default()).await.unwrap();
    let worker = world.start_with("worker", "worker", &worker_login.environment());
    let relay = world.start_with("relay", "relay", &relay_login.environment());
    // Alone and in batches, for the first time and again.
    for round in 0..2 {
        for number in 0..20 {
            let asked = message("acme", &format!("k{number}")).with_reply_to(answers.as_str().into());
            world.publish("payments", asked, "{}").await;
        }
        world.publish("payments", message("acme", "rejected"), r#"{"do": "reject"}"#).await;
        world.wait_for("select count(*) from app.effects", 20).await;
        world.wait_for_ready(&answers, 20 * (round + 1)).await;
    }
    world.publish("payments", message("acme", "fails"), r#"{"do": "fail"}"#).await;
    let letters = "select count(*) from oncely.dead_letters where state = 'waiting'";
    world.wait_for(letters, 2).await;

    let oncely = async |world: &World, login: &Login, arguments: &[&str]| {
        let [(name, url)] = login.environment();
        let output = world.oncely_with(arguments, &[(name, &url)]).await;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), said)
    };
    let (done, said) = oncely(&world, operator, &["failed", "requeue", "--key", "fails", "--yes"]).await;
    assert!(done, "{said}");
    world
        .wait_for("select count(*) from oncely.dead_letters where generation = 2 and state = 'waiting'", 1)
        .await;
    // Keys past their retention: completed ones by both of the ways there are, and a client's.
    run(
        &mut world,
        "update oncely.idempotency_keys set completed_at = now() - interval '20 days', created_at = now() - interval '21 days'
             where status = 'COMPLETED' and key <> 'k7';
         insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at)
             values ('acme', 'orders', 'k', 'COMPLETED', 1, now() - interval '9 days', now() - interval '9 days', now() - interval '1 day')",
    )
    .await;
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from oncely.idempotency_keys where key = 'k3' for update")
        .execute(&mut holder)
        .await
        .unwrap();
    let (done, said) = oncely(&world, operator, &["gc", "run"]).await;
    assert!(done, "{said}");
    sqlx::raw_sql("rollback").execute(&mut holder).await.unwrap();
    let left =
        "select string_agg(key, ' ' order by key) from oncely.idempotency_keys where status = 'COMPLETED'";
    assert_eq!(world.text(left).await.as_deref(), Some("k3 k7"));
    let (done, said) = oncely(&world, relay_login, &["gc", "run"]).await;
    assert!(done, "{said}");
    assert_eq!(world.text(left).await.as_deref(), Some("k7"));

    // Who may not read responses is told all the rest.
    let (done, said) = oncely(&world, auditor, &["explain", "k7", "--tenant", "acme", "--json"]).await;
    assert!(done, "{said}");
    assert!(said.contains("COMPLETED") && !said.contains("\"done\""), "{said}");
    let (done, said) = oncely(&world, operator, &["explain", "k7", "--tenant", "acme", "--json"]).await;
    assert!(done && said.contains("\"done\""), "{said}");
    for arguments in [["audit", "list"], ["failed", "list"], ["grant", "--list"], ["outbox", "list"]] {
        let (_, said) = oncely(&world, auditor, &arguments).await;
        assert!(!said.contains("permission"), "{said}");
    }
    world.stop(worker).await;
    world.stop(relay).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 20);
    for login in logins {
        login.drop_now(&mut world).await;
    }
}
