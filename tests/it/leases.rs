//! What is held for effects outside PostgreSQL, as operators see it, and end it.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::command_line::stdout;
use crate::support::http::{address, wait_for};
use crate::support::{Login, World};

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Claims a key of a tenant and consumer by a lease: its token.
pub(crate) async fn hold(sql: &mut PgConnection, (tenant, consumer, key): (&str, &str, &str)) -> i64 {
    sqlx::query_scalar("select token from oncely.claim_lease($1, $2, $3, sha256('{}'), 'run of ' || $3)")
        .bind(tenant)
        .bind(consumer)
        .bind(key)
        .fetch_one(sql)
        .await
        .unwrap()
}

async fn run(sql: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(sql).await.expect(statement);
}

/// Makes time pass for what is held.
pub(crate) async fn let_it_run_out(sql: &mut PgConnection, key: &str) {
    run(
        sql,
        &format!(
            "update oncely.idempotency_keys set not_before = now() - interval '3 minutes', grace_ends_at = now() - interval '3 minutes', run_ends_at = now() - interval '2 minutes',
                fencing_token = fencing_token - 600000000 where key = '{key}'"
        ),
    )
    .await;
}

/// A consumer's keys of two tenants that runs hold, among many that nobody does.
async fn many() -> World {
    let mut world = World::new().await;
    let fill = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at)
        select 'acme', 'payments', 'tried ' || n, 'IN_PROGRESS', 1, now() from generate_series(1, 30000) as n;
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, owner, fencing_token, not_before, run_ends_at, steps
        )
        select case n % 2 when 0 then 'acme' else 'globex' end, case n % 3 when 0 then 'ledger' else 'payments' end, 'k' || n,
            'IN_PROGRESS', 0, now(), 'run ' || n, 1800000000000000 + n / 10,
            now() + case when n % 5 = 0 then interval '-1 minute' else interval '1 hour' end, now() + interval '1 day',
            jsonb_build_object('charge', jsonb_build_object(
                'state', 'done', 'round', 0, 'token', 1, 'started_at', now(), 'done_at', now(), 'result', 'S3CR3T'
            ))
        from generate_series(1, 600) as n";
    run(&mut world.sql, fill).await;
    world
}

/// All pages.
async fn walked(world: &World, arguments: &[&str], limit: usize) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    let limit_text = limit.to_string();
    loop {
        let mut words = vec!["leases", "list", "--json", "--limit", &limit_text];
        words.extend(arguments);
        if let Some(after) = &after {
            words.extend(["--after", after]);
        }
        let output = world.oncely(&words).await;
        assert!(!stdout(&output).contains("S3CR3T"), "what a step brought is nobody's business here");
        let object: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
        assert_eq!(object["schema"], "oncely.leases/1");
        let rows = object["leases"].as_array().unwrap().clone();
        assert_eq!(output.status.code(), Some(i32::from(rows.is_empty())), "{words:?}");
        all.extend(rows);
        match &object["next"] {
            Value::String(next) => after = Some(next.clone()),
            _ => return all,
        }
    }
}

#[tokio::test]
async fn what_is_held_is_listed_page_by_page_and_what_is_not_held_is_not_read() {
    let mut world = many().await;
    let read = "select coalesce(sum(seq_tup_read), 0)::bigint + coalesce(sum(idx_tup_fetch), 0)::bigint
        + (select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_all_indexes where relid = 'oncely.idempotency_keys'::regclass)
        from pg_stat_all_tables where relid = 'oncely.idempotency_keys'::regclass";
    run(&mut world.sql, "select pg_stat_force_next_flush()").await;
    let before = world.count(read).await;
    for (arguments, limit, count) in [
        (&[][..], 10_000, 600),
        (&["--consumer", "ledger"], 37, 200),
        (&["--tenant", "acme"], 100, 300),
        (&["--consumer", "payments", "--tenant", "globex"], 50, 200),
        (&["--over"], 50, 120),
        (&["--consumer", "nobody"], 50, 0),
    ] {
        let rows = walked(&world, arguments, limit).await;
        let names: std::collections::BTreeSet<String> =
            rows.iter().map(|row| format!("{} {} {}", row["tenant"], row["consumer"], row["key"])).collect();
        assert_eq!((rows.len(), names.len()), (count, count), "{arguments:?}");
        let order = rows.iter().map(|row| (row["consumer"].to_string(), row["token"].as_i64().unwrap()));
        assert!(order.is_sorted(), "the oldest first, within a consumer");
    }
    let row = walked(&world, &["--over"], 600).await.remove(0);
    assert_eq!((&row["owner"], &row["key"]), (&json!("run 15"), &json!("k15")), "{row}");
    assert_eq!(row["is_over"], true, "{row}");
    let text = stdout(&world.oncely(&["leases", "list", "--over", "--limit", "1"]).await);
    assert!(text.contains("over for ") && text.contains("charge done"), "{text}");
    assert_eq!(row["steps"][0]["state"], "done", "{row}");
    // Programs that have ended have said what they read.
    run(&mut world.sql, "select pg_stat_force_next_flush(); select pg_stat_clear_snapshot()").await;
    let after = world.count(read).await;
    assert!(after > before && after - before < 20_000, "{} rows were read", after - before);
}

#[tokio::test]
async fn a_key_is_taken_from_a_run_that_hangs_once_somebody_has_agreed() {
    let mut world = World::new().await;
    world.configure("");
    let mut holder = world.database.connect().await.unwrap();
    let token = hold(&mut holder, ("acme", "payments", "order-1182")).await;
    for (step, rule) in [("mail", "always"), ("charge", "never")] {
        let begin = format!(
            "select oncely.begin_step('acme', 'payments', 'order-1182', {token}, '{step}', '{rule}')"
        );
        run(&mut holder, &begin).await;
    }
    run(
        &mut holder,
        &format!("select oncely.checkpoint('acme', 'payments', 'order-1182', {token}, 'mail', '1')"),
    )
    .await;
    let held = "select count(*) from oncely.idempotency_keys where owner is not null";
    let acted = "select count(*) from oncely.operator_actions";

    // Whoever only looks sees who holds it, and neither the steps nor a way to end it.
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let operator = Login::create(&mut world, "oncely_operator").await;
    let release = ["leases", "release", "order-1182", "--yes", "--note", "host is gone"];
    {
        let [(name, url)] = auditor.environment();
        let output = world.oncely_with(&["leases", "list", "--json"], &[(name, &url)]).await;
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&object["leases"][0]["owner"], &object["leases"][0]["steps"]),
            (&json!("run of order-1182"), &Value::Null)
        );
        let output = world.oncely_with(&release, &[(name, &url)]).await;
        assert_eq!(output.status.code(), Some(4), "{}", told(&output));
    }
    let [(name, url)] = operator.environment();
    let as_operator = [(name, url.as_str()), ("USER", "ana")];
    let text = stdout(&world.oncely_with(&["leases", "list"], &as_operator).await);
    for part in ["run of order-1182", "ends in", "mail done, charge started"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    // Nobody has agreed.
    for (more, code) in [(&[][..], 4), (&["--dry-run"], 0)] {
        let output = world.oncely_with(&[&release[..3], more].concat(), &as_operator).await;
        assert_eq!(output.status.code(), Some(code), "{}", told(&output));
        for part in [
            "held by run of order-1182",
            "The run is not stopped",
            "The step charge may have happened and must not be repeated",
        ] {
            assert!(told(&output).contains(part), "no {part:?} in\n{}", told(&output));
        }
        assert!(!told(&output).contains("The step mail"), "it is done: {}", told(&output));
    }
    assert_eq!((world.count(held).await, world.count(acted).await), (1, 0));

    let output = world.oncely_with(&[&release[..], &["--json"]].concat(), &as_operator).await;
    assert!(output.status.success(), "{}", told(&output));
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&object["outcome"], &object["lease"]["token"]),
        (&json!("released"), &json!(token)),
        "{object}"
    );
    assert_eq!((world.count(held).await, world.count(acted).await), (0, 1));
    let record = "select concat_ws(' | ', tenant, actor, verb, reason, filter ->> 'key', filter ->> 'owner') from oncely.operator_actions";
    assert_eq!(
        world.text(record).await,
        Some(format!(
            "acme | {} (ana) | revoke_lease | host is gone | order-1182 | run of order-1182",
            operator.name
        ))
    );
    // The run that comes back is fenced, and the next one gives up what must not be repeated.
    let late = format!("select oncely.complete_lease('acme', 'payments', 'order-1182', {token})");
    let error = sqlx::raw_sql(AssertSqlSafe(late)).execute(&mut holder).await.unwrap_err();
    assert_eq!(error.as_database_error().unwrap().code().unwrap(), "ONC18");
    let next = hold(&mut holder, ("acme", "payments", "order-1182")).await;
    let begun = format!(
        "select state from oncely.begin_step('acme', 'payments', 'order-1182', {next}, 'charge', 'never')"
    );
    assert_eq!(world.text(&begun).await.as_deref(), Some("unknown"));

    // Whoever has looked at one run ends no other.
    let stale = format!(
        "select oncely.revoke_lease('acme', 'payments', 'order-1182', null, {token})::integer::bigint"
    );
    assert_eq!((world.count(&stale).await, world.count(held).await), (0, 1));
    run(&mut holder, &format!("select oncely.release_lease('acme', 'payments', 'order-1182', {next})")).await;
    let output = world.oncely_with(&release, &as_operator).await;
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert_eq!(world.count(acted).await, 1, "nothing was done");

    // Of two that hold a key of this name one is named.
    hold(&mut holder, ("acme", "payments", "twice")).await;
    hold(&mut holder, ("acme", "ledger", "twice")).await;
    let twice = ["leases", "release", "twice", "--yes"];
    let output = world.oncely_with(&twice, &as_operator).await;
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    assert!(told(&output).contains("--tenant acme --consumer ledger"), "{}", told(&output));
    let output = world.oncely_with(&[&twice[..], &["--consumer", "ledger"]].concat(), &as_operator).await;
    assert!(output.status.success(), "{}", told(&output));
    let left = "select consumer from oncely.idempotency_keys where owner is not null";
    assert_eq!(world.text(left).await.as_deref(), Some("payments"));
    holder.close().await.unwrap();
    for login in [auditor, operator] {
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn what_steps_brought_is_in_a_tenants_export_and_gone_with_its_erasure() {
    let mut world = World::new().await;
    world.configure("");
    let mut holder = world.database.connect().await.unwrap();
    for (tenant, key, secret) in
        [("acme", "open", "S3CR3T1"), ("acme", "done", "S3CR3T2"), ("globex", "other", "K3PT")]
    {
        let token = hold(&mut holder, (tenant, "payments", key)).await;
        let steps = format!(
            "select oncely.begin_step('{tenant}', 'payments', '{key}', {token}, 'charge', 'always');
             select oncely.checkpoint('{tenant}', 'payments', '{key}', {token}, 'charge', '{{\"id\": \"{secret}\"}}')"
        );
        run(&mut holder, &steps).await;
        if key == "done" {
            run(
                &mut holder,
                &format!("select oncely.complete_lease('{tenant}', 'payments', '{key}', {token})"),
            )
            .await;
        }
    }
    let export = async |world: &World, more: &[&str]| {
        let output = world.oncely(&[&["tenant", "export", "acme"][..], more].concat()).await;
        assert!(output.status.success(), "{}", told(&output));
        stdout(&output)
    };
    let plain = export(&world, &[]).await;
    assert!(!plain.contains("S3CR3T"), "{plain}");
    let whole = export(&world, &["--reveal", "--note", "asked for"]).await;
    for line in whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if line["schema"] == "oncely.tenant.key/1" {
            let steps: Value = serde_json::from_str(line["steps"].as_str().unwrap()).unwrap();
            let id = if line["key"] == "done" { "S3CR3T2" } else { "S3CR3T1" };
            assert_eq!(steps["charge"]["result"], json!({ "id": id }), "{line}");
        }
    }
    assert!(whole.contains("S3CR3T1") && whole.contains("S3CR3T2") && !whole.contains("K3PT"), "{whole}");
    // What the configuration masks stays masked.
    world.configure("[console]\nmask = [\"/id\"]");
    let masked = export(&world, &["--reveal"]).await;
    assert!(masked.contains("•••") && !masked.contains("S3CR3T"), "{masked}");

    // What a run holds stays until its lease is over.
    let erase = ["tenant", "erase", "acme", "--forget-keys", "--yes"];
    let output = world.oncely(&erase).await;
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("oncely leases list"), "{}", told(&output));
    let kept = "select string_agg(tenant || ' ' || key, ', ' order by key) from oncely.idempotency_keys where steps is not null";
    assert_eq!(world.text(kept).await.as_deref(), Some("acme open, globex other"));
    let_it_run_out(&mut holder, "open").await;
    let output = world.oncely(&erase).await;
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(world.text(kept).await.as_deref(), Some("globex other"));
    // Nor does the run that had it bring it back.
    let late = "select oncely.fail_lease('acme', 'payments', 'open', 1, 'boom')";
    run(&mut holder, late).await;
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys where tenant = 'acme'").await, 0);
    holder.close().await.unwrap();
}

#[tokio::test]
async fn a_relay_tells_how_much_is_held_and_what_nobody_takes_over() {
    let mut world = World::new().await;
    world.configure("[relay]\nlisten = \"127.0.0.1:0\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let mut holder = world.database.connect().await.unwrap();
    let token = hold(&mut holder, ("acme", "payments", "fresh")).await;
    hold(&mut holder, ("globex", "payments", "old")).await;
    hold(&mut holder, ("acme", "elsewhere", "k")).await;
    let_it_run_out(&mut holder, "old").await;
    let relay = world.start("relay");
    let at = address(&relay).await;
    for line in [
        "oncely_leases_held{consumer=\"payments\"} 2\n",
        "oncely_leases_over{consumer=\"payments\"} 1\n",
        "oncely_leases_oldest_age_seconds{consumer=\"payments\"} 60",
        "oncely_leases_held{consumer=\"_other\"} 1\n",
        "oncely_leases_over{consumer=\"_other\"} 0\n",
    ] {
        wait_for(&at, "/metrics", 200, line).await;
    }
    run(&mut holder, &format!("select oncely.complete_lease('acme', 'payments', 'fresh', {token})")).await;
    wait_for(&at, "/metrics", 200, "oncely_leases_held{consumer=\"payments\"} 1\n").await;
    holder.close().await.unwrap();
    world.stop(relay).await;
}

/// A lease of a consumer that ended long ago, one that lasts, and one of a consumer that no worker has.
async fn held() -> (World, PgConnection) {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.register("payments", "7 days").await;
    let mut holder = world.database.connect().await.unwrap();
    hold(&mut holder, ("acme", "payments", "fresh")).await;
    let token = hold(&mut holder, ("globex", "payments", "old")).await;
    let begin = format!("select oncely.begin_step('globex', 'payments', 'old', {token}, 'charge', 'never')");
    run(&mut holder, &begin).await;
    let_it_run_out(&mut holder, "old").await;
    (world, holder)
}

#[tokio::test]
async fn whoever_looks_sees_what_is_held_and_what_nobody_takes_over() {
    let (mut world, mut holder) = held().await;
    let output = world.oncely(&["status", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&object["postgres"]["leases"][0]["held"], &object["postgres"]["leases"][0]["over"]),
        (&json!(2), &json!(1)),
        "{object}"
    );
    let found = "1 key is held by an expired lease, the first expired 3m";
    assert!(object["findings"].to_string().contains(found), "{}", object["findings"]);
    let text = stdout(&world.oncely(&["status"]).await);
    assert!(text.contains("payments: 2 held, 1 over, oldest 1"), "{text}");
    let text = stdout(&world.oncely(&["top", "--once"]).await);
    assert!(text.contains("HELD") && text.contains("2 (1 over)"), "{text}");
    let text = stdout(&world.oncely(&["consumers", "list"]).await);
    assert!(text.contains("2 (1 over)"), "{text}");
    let output = world.oncely(&["consumers", "list", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&object["consumers"][0]["held"], &object["consumers"][0]["held_over"]),
        (&json!(2), &json!(1))
    );

    // An auditor sees as much.
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    {
        let [(name, url)] = auditor.environment();
        let output = world.oncely_with(&["top", "--once"], &[(name, &url)]).await;
        assert!(stdout(&output).contains("2 (1 over)"), "{}", told(&output));
    }
    auditor.drop_now(&mut world).await;

    // What is taken over in time is no news; what nobody holds is not spoken of.
    run(&mut holder, "delete from oncely.idempotency_keys where key = 'old'").await;
    let output = world.oncely(&["status", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!object["findings"].to_string().contains("held by an expired lease"), "{}", object["findings"]);
    run(&mut holder, "delete from oncely.idempotency_keys").await;
    let text = stdout(&world.oncely(&["top", "--once"]).await);
    assert!(!text.contains("HELD"), "{text}");
    holder.close().await.unwrap();
}
