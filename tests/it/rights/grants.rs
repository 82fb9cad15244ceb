//! `oncely grant`, and what follows from it.

use serde_json::{Value, json};
use sqlx::Connection as _;

use super::code_of;
use crate::support::{Login, World};

const CLAIM: &str = "select oncely.claim('acme', 'invoices', 'k', null)";

async fn grant(world: &World, as_login: &Login, arguments: &[&str]) -> (i32, Value) {
    let mut all = vec!["grant"];
    all.extend(arguments);
    all.push("--json");
    let [(name, url)] = as_login.environment();
    let output = world.oncely_with(&all, &[(name, &url)]).await;
    let said = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().unwrap(), said)
}

#[tokio::test]
async fn an_operator_grants_lists_and_takes_back_what_a_login_may_do() {
    let mut world = World::new().await;
    world.configure("");
    let operator = Login::create(&mut world, "oncely_operator").await;
    let shop = Login::create(&mut world, "oncely_consumer").await;
    let mut sql = shop.connect().await;
    assert_eq!(code_of(&mut sql, CLAIM).await.as_deref(), Some("ONC16"));

    let invoices = [shop.name.as_str(), "--consumer", "invoices", "--tenant", "acme"];
    let (code, said) = grant(&world, &operator, &invoices).await;
    assert_eq!((code, &said["changed"], &said["schema"]), (0, &json!(1), &json!("oncely.grant/1")), "{said}");
    // Again: there already.
    let (code, said) = grant(&world, &operator, &invoices).await;
    assert_eq!((code, &said["changed"], &said["rights"][0]["object"]), (0, &json!(0), &json!("invoices")));
    let mut transaction = sql.begin().await.unwrap();
    for call in [CLAIM, "select oncely.complete('acme', 'invoices', 'k', worker => 'somebody else')"] {
        assert_eq!(code_of(&mut transaction, call).await, None);
    }
    transaction.commit().await.unwrap();
    assert_eq!(code_of(&mut sql, "select oncely.fail('acme', 'invoices', 'f', null, 1, 'x')").await, None);
    // The name may be anybody's, the login is not.
    let trail = format!("select count(*) from oncely.audit where login = '{}'", shop.name);
    assert_eq!(world.count(&trail).await, 2);
    assert_eq!(
        world.count("select count(*) from oncely.processed_keys where worker = 'somebody else'").await,
        1
    );
    let told = world.oncely(&["audit", "list", "--json"]).await;
    assert!(String::from_utf8_lossy(&told.stdout).contains(&shop.name));

    // Events: what a login may do is listed exchange by exchange, and of any tenant where that was said.
    let (code, _) = grant(&world, &operator, &[&shop.name, "--emit", "--tenant", "*"]).await;
    assert_eq!(code, 2, "no exchange is named");
    let exchanges = [&shop.name, "--emit", "--exchange", "orders", "--exchange", "", "--tenant", "*"];
    let (code, said) = grant(&world, &operator, &exchanges).await;
    assert_eq!((code, &said["changed"]), (0, &json!(2)));
    let row = &said["rights"][0];
    assert_eq!((&row["has_role"], &row["login_exists"]), (&json!(false), &json!(true)), "{said}");
    let member = format!("grant oncely_emitter to {}", shop.name);
    super::run(&mut world, &member).await;
    for (call, expected) in [
        ("select oncely.emit('orders', 'r', 'x', tenant => 'any')", None),
        ("select oncely.emit('', 'queue', 'x')", None),
        ("select oncely.emit('other', 'r', 'x')", Some("ONC16")),
    ] {
        assert_eq!(code_of(&mut sql, call).await.as_deref(), expected, "{call}");
    }

    let (code, said) = grant(&world, &operator, &["--list", &shop.name]).await;
    assert_eq!((code, said["rights"].as_array().map(Vec::len)), (0, Some(3)));
    let (code, said) = grant(&world, &operator, &[&shop.name, "--revoke", "--emit"]).await;
    assert_eq!((code, &said["changed"]), (0, &json!(2)));
    assert_eq!(code_of(&mut sql, "select oncely.emit('orders', 'r', 'x')").await.as_deref(), Some("ONC16"));
    assert_eq!(code_of(&mut sql, "select oncely.fail('acme', 'invoices', 'f', null, 2, 'x')").await, None);
    assert_eq!(grant(&world, &operator, &[&shop.name, "--revoke"]).await.0, 0);
    assert_eq!(grant(&world, &operator, &[&shop.name, "--revoke"]).await.0, 1);
    assert_eq!(grant(&world, &operator, &["--list", &shop.name]).await.0, 1);
    assert_eq!(code_of(&mut sql, CLAIM).await.as_deref(), Some("ONC16"));
    // Who granted what to whom is in the record.
    let acts = format!(
        "select count(*) from oncely.operator_actions where actor = '{}' and verb in ('grant', 'revoke') and filter ->> 'login' = '{}'",
        operator.name, shop.name
    );
    assert_eq!(world.count(&acts).await, 5);
    // A consumer grants nothing.
    let refused = grant(&world, &shop, &invoices).await;
    assert_ne!(refused.0, 0);
    sql.close().await.unwrap();
    shop.drop_now(&mut world).await;
    operator.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_right_of_a_role_is_its_members_and_no_detour_is() {
    let mut world = World::new().await;
    let team = Login::create(&mut world, "oncely_consumer").await;
    let member = Login::create(&mut world, &team.name).await;
    let stranger = Login::create(&mut world, "oncely_consumer").await;
    super::run(
        &mut world,
        &format!("select oncely.grant_right('{}', 'consume', 'invoices', '*')", team.name),
    )
    .await;
    let mut sql = member.connect().await;
    assert_eq!(code_of(&mut sql, CLAIM).await, None);
    // Somebody's function with that role's rights does not lend them: who called it is asked for.
    super::run(
        &mut world,
        &format!(
            "create function app.claim_all() returns text language sql security definer
                 as $$ select outcome from oncely.claim('acme', 'invoices', 'lent', null) $$;
             grant create, usage on schema app to {0}; alter function app.claim_all() owner to {0}; grant usage on schema app to {1}",
            team.name, stranger.name
        ),
    )
    .await;
    let mut other = stranger.connect().await;
    assert_eq!(code_of(&mut other, "select app.claim_all()").await.as_deref(), Some("ONC16"));
    sql.close().await.unwrap();
    other.close().await.unwrap();
    for login in [member, stranger, team] {
        login.drop_now(&mut world).await;
    }
}
