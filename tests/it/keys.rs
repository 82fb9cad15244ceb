//! `oncely keys`: pages of keys, each along an index.

use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::command_line::{lived_in, stdout};
use crate::support::{Login, World};

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two tenants' keys of two consumers: batches of 500 that share a time, as a worker writes them, some that failed and some in progress.
async fn many() -> World {
    let mut world = World::new().await;
    let fill = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, reason)
        select case n % 2 when 0 then 'acme' else 'globex' end, case n % 3 when 0 then 'ledger' else 'payments' end, 'k' || n,
            (case when n % 100 = 0 then 'FAILED' when n % 101 = 0 then 'IN_PROGRESS' else 'COMPLETED' end)::oncely.key_status, 1,
            now() - interval '1 hour' - (n / 500) * interval '1 second',
            case when n % 100 = 0 or n % 101 <> 0 then now() - (n / 500) * interval '1 second' end,
            case when n % 100 = 0 then 'attempts_exhausted' end
        from generate_series(1, 60000) as n";
    sqlx::raw_sql(fill).execute(&mut world.sql).await.unwrap();
    world
}

/// All pages.
async fn walked(world: &World, arguments: &[&str], limit: usize) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), None::<String>);
    let limit_text = limit.to_string();
    loop {
        let mut words = vec!["keys", "list", "--json", "--limit", &limit_text];
        words.extend(arguments);
        if let Some(after) = &after {
            words.extend(["--after", after]);
        }
        let output = world.oncely(&words).await;
        let object: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{words:?}: {error}: {}", told(&output)));
        assert_eq!(object["schema"], "oncely.keys/1");
        let rows = object["keys"].as_array().unwrap().clone();
        assert_eq!(output.status.code(), Some(i32::from(rows.is_empty())), "{words:?}");
        all.extend(rows);
        match &object["next"] {
            Value::String(next) => after = Some(next.clone()),
            _ => return all,
        }
    }
}

#[tokio::test]
async fn pages_follow_one_another_without_a_gap_or_a_repetition_and_read_no_table_as_a_whole() {
    let mut world = many().await;
    let scans = "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_all_tables where relid = 'oncely.idempotency_keys'::regclass";
    // The statistics of a session are seen when it has ended; ours does not look at the table from here on.
    world
        .wait_for(
            "select count(*) from oncely.idempotency_keys where status = 'FAILED' and consumer = 'payments'",
            400,
        )
        .await;
    sqlx::raw_sql("select pg_stat_force_next_flush()").execute(&mut world.sql).await.unwrap();
    let before = world.count(scans).await;
    for (arguments, limit, count) in [
        (&["--tenant", "acme"][..], 10_000, 30_000),
        (&["--tenant", "acme", "--consumer", "ledger"], 3_000, 10_000),
        (&["--consumer", "payments", "--status", "failed"], 37, 400),
        (&["--consumer", "payments", "--status", "failed", "--tenant", "acme"], 150, 400),
        (&["--consumer", "payments", "--status", "completed"], 10_000, 39_208),
        (&["--consumer", "ledger", "--status", "in-progress"], 7, 197),
        (&["--consumer", "payments", "--status", "failed", "--since", "1h"], 50, 400),
        (&["--consumer", "payments", "--status", "failed", "--until", "1h"], 50, 0),
        (&["--tenant", "nobody"], 50, 0),
    ] {
        let rows = walked(&world, arguments, limit).await;
        let names: std::collections::BTreeSet<String> =
            rows.iter().map(|row| format!("{} {} {}", row["tenant"], row["consumer"], row["key"])).collect();
        assert_eq!((rows.len(), names.len()), (count, count), "{arguments:?}");
        if arguments.contains(&"--status") {
            let times = rows
                .iter()
                .map(|row| [&row["completed_at"], &row["created_at"]].map(|at| at.as_str().unwrap_or("")));
            assert!(times.is_sorted_by(|one, next| one[0] >= next[0] && one[1] >= next[1]), "{arguments:?}");
        }
    }
    assert_eq!(world.count(scans).await, before, "a sequential scan");
    // It would have been noticed.
    let mut other = world.database.connect().await.unwrap();
    let scan = "select count(*) from oncely.idempotency_keys where last_error = 'x'; select pg_stat_force_next_flush()";
    sqlx::raw_sql(scan).execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    world.wait_for(&format!("select count(*) from ({scans}) as s (n) where n > {before}"), 1).await;
}

#[tokio::test]
async fn what_no_index_serves_is_refused_with_what_to_add() {
    let world = World::new().await;
    for (arguments, said) in [
        (&[][..], "name a --tenant, or a --consumer with a --status"),
        (&["--consumer", "payments"], "add --status, or a --tenant"),
        (&["--status", "failed"], "name a --consumer, too"),
        (&["--tenant", "acme", "--status", "failed"], "name a --consumer, too"),
        (&["--tenant", "acme", "--since", "1h"], "name a --consumer and a --status"),
        (&["--tenant", "acme", "--consumer", "payments", "--status", "completed"], "ask the trail"),
        (&["--tenant", "acme", "--after", "k7"], "--after takes the place"),
        (
            &["--consumer", "payments", "--status", "failed", "--after", "[\"a\",\"b\"]"],
            "--after takes the place",
        ),
    ] {
        let output = world.oncely(&[&["keys", "list"], arguments].concat()).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", told(&output));
        assert!(told(&output).contains(said), "{arguments:?}: {}", told(&output));
    }
}

#[tokio::test]
async fn one_key_is_shown_with_all_its_facts() {
    let mut world = lived_in().await;
    let two = world.oncely(&["keys", "show", "order-1"]).await;
    assert_eq!(two.status.code(), Some(2));
    assert!(
        told(&two).contains("--tenant acme --consumer payments") && told(&two).contains("--tenant globex"),
        "{}",
        told(&two)
    );
    let output = world.oncely(&["keys", "show", "order-1", "--tenant", "acme", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["schema"], &object["key"]["status"]), (&json!("oncely.key/1"), &json!("COMPLETED")));
    assert_eq!(
        (&object["mirrored"], &object["key"]["response"]),
        (&json!(true), &json!({ "done": "order-1" }))
    );
    let text = stdout(&world.oncely(&["keys", "show", "order-1", "--tenant", "acme"]).await);
    for part in [
        "status           COMPLETED",
        "protected_until",
        "mirrored         true",
        r#"response         {"done":"order-1"}"#,
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert_eq!(world.oncely(&["keys", "show", "never-seen"]).await.status.code(), Some(1));
    // An auditor sees all of it but what the handler answered.
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let environment = auditor.environment();
    let [(name, url)] = &environment;
    let output =
        world.oncely_with(&["keys", "show", "order-1", "--tenant", "acme", "--json"], &[(name, url)]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&object["key"]["status"], &object["key"]["response"]), (&json!("COMPLETED"), &Value::Null));
    let list = ["keys", "list", "--consumer", "payments", "--status", "failed", "-o", "csv"];
    let output = world.oncely_with(&list, &[(name, url)]).await;
    assert!(
        stdout(&output).contains("\nglobex,payments,order-1,FAILED,1,"),
        "{}{}",
        stdout(&output),
        told(&output)
    );
    auditor.drop_now(&mut world).await;
}
