//! A key of which nobody knows whether it took effect is settled by whoever has looked.

use super::{console, furnish};
use crate::leases::{hold, let_it_run_out};
use crate::support::World;

#[tokio::test]
async fn a_key_is_settled_by_whoever_says_what_was_found_and_has_seen_its_last_run() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let mut holder = world.database.connect().await.unwrap();
    sqlx::raw_sql("delete from oncely.idempotency_keys").execute(&mut holder).await.unwrap();
    let token = hold(&mut holder, ("acme", "payments", "order-1182")).await;
    let gives_up = format!(
        "select oncely.begin_step('acme', 'payments', 'order-1182', {token}, 'charge', 'never');
         select oncely.fail_lease('acme', 'payments', 'order-1182', {token}, 'torn', 'outcome_unknown')"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(gives_up)).execute(&mut holder).await.unwrap();
    hold(&mut holder, ("acme", "payments", "left")).await;
    hold(&mut holder, ("acme", "payments", "held")).await;
    let_it_run_out(&mut holder, "left").await;
    let (running, operator) = console(&world).await;
    for (path, part) in [
        ("/key?tenant=acme&consumer=payments&key=order-1182", "Settle…"),
        ("/settle?tenant=acme&consumer=payments&key=order-1182", "charge"),
        ("/settle?tenant=acme&consumer=payments&key=left", "Settle 1"),
        ("/settle?tenant=acme&consumer=payments&key=held", "nothing to settle"),
        ("/settle?tenant=acme&consumer=payments&key=no", "nothing to settle"),
    ] {
        let page = operator.page(path).await;
        assert!(page.body.contains(part), "no {part:?} on {path}: {}", page.body);
    }
    assert_eq!(operator.get("/settle?key=order-1182").await.status, 400);
    let named = [("tenant", "acme"), ("consumer", "payments"), ("key", "order-1182")];
    let seen = format!("1/{token}");
    for (fields, said) in [
        (&[("seen", seen.as_str()), ("note", "found nothing")][..], "say whether it took effect"),
        (&[("seen", seen.as_str()), ("took_effect", "no")], "State how you know"),
        (&[("took_effect", "no"), ("note", "found nothing")], "has changed since it was shown"),
        (
            &[("seen", "1/1"), ("took_effect", "no"), ("note", "found nothing")],
            "has changed since it was shown",
        ),
    ] {
        let answer = operator.submit("/settle/say", &[&named[..], fields].concat()).await;
        assert_eq!(answer.status, 422, "{fields:?}: {}", answer.body);
        assert!(answer.body.contains(said), "{fields:?}: {}", answer.body);
    }
    let agreed = [("seen", seen.as_str()), ("took_effect", "no"), ("note", "found nothing")];
    let answer = operator.submit("/settle/say", &[&named[..], &agreed].concat()).await;
    assert_eq!(
        (answer.status, answer.header("location")),
        (303, Some("/key?tenant=acme&consumer=payments&key=order-1182"))
    );
    let runs = "select count(*) from oncely.idempotency_keys where key = 'order-1182' and status = 'IN_PROGRESS' and attempts = 0";
    assert_eq!(world.count(runs).await, 1);
    let record = "select count(*) from oncely.operator_actions where verb = 'settle_claim' and actor like '%, console)' and reason = 'found nothing'";
    assert_eq!(world.count(record).await, 1);
    let answer = operator.submit("/settle/say", &[&named[..], &agreed].concat()).await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    drop(running);
}
