//! `oncely tenant export` and `oncely tenant erase`: all of a tenant, and then nothing.

use std::time::Duration;

use redis::AsyncCommands as _;
use serde_json::{Value, json};
use sqlx::Row as _;
use testbed::Redis;

use crate::command_line::stdout;
use crate::support::{Login, World, message};

/// The tenant that leaves. Its name stands in its keys, and in what its messages say.
pub(crate) const GONE: &str = "zebra-4711";

fn told(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements.to_owned()))
        .execute(&mut world.sql)
        .await
        .expect(statements);
}

/// Runs `oncely tenant erase … --json`.
pub(crate) async fn erase(world: &World, arguments: &[&str]) -> (i32, Value, String) {
    let all = [&["tenant", "erase", GONE][..], arguments, &["--json"]].concat();
    let output = world.oncely(&all).await;
    let object = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code().unwrap(), object, told(&output))
}

/// Every value of every table that holds a text, as "table.column: value".
async fn everywhere(world: &mut World, text: &str) -> Vec<String> {
    let columns =
        "select format('%I.%I', c.relname, a.attname), format('oncely.%I', c.relname), quote_ident(a.attname)
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p')";
    let columns = sqlx::query(columns).fetch_all(&mut world.sql).await.unwrap();
    let mut found = Vec::new();
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    for row in columns {
        let [name, table, column] = [0, 1, 2].map(|place| row.get::<String, _>(place));
        let query = format!(
            "select left({column}::text, 200) from {table} where strpos({column}::text, '{text}') > 0 or strpos({column}::text, '{hex}') > 0"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(query)).fetch_all(&mut world.sql).await.unwrap();
        found.extend(rows.iter().map(|row| format!("{name}: {}", row.get::<String, _>(0))));
    }
    found
}

/// Two tenants that have lived a while: five messages of one and three of the other took effect, two and one are dead letters, events of both
/// are parked, rights were granted, people have done something, and the trail of some hours is sealed.
async fn lived_in(redis: &Redis) -> World {
    let mut world = World::new().await;
    run(&mut world, "select oncely.make_audit_partition(now() - interval '1 week')").await;
    world.with_redis(&redis.url(), "");
    world.configure("[relay]\npoll = \"20ms\"\n[events]\nretry = { delays = [\"100ms\"], max_attempts = 2 }");
    world.consumer("payments", "");
    world.apply_topology().await;
    // Before a relay seals these hours.
    for tenant in [GONE, "acme"] {
        run(
            &mut world,
            &format!(
                "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker, detail)
                 select '{tenant}', now() - make_interval(mins => n), 1, 'payments', '{tenant}-' || n, 'q', 'completed', 'w', '{tenant}'
                 from generate_series(60, 180, 5) as n"
            ),
        )
        .await;
    }
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    for number in 0..5 {
        let body = format!("{{\"card\": \"{GONE}\"}}");
        world.publish("payments", message(GONE, &format!("{GONE}-{number}")), &body).await;
    }
    for number in 0..3 {
        world.publish("payments", message("acme", &format!("a{number}")), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 8).await;
    for number in 0..2 {
        let body = format!("{{\"do\": \"reject\", \"card\": \"{GONE}\"}}");
        world.publish("payments", message(GONE, &format!("{GONE}-bad-{number}")), &body).await;
        world.wait_for("select count(*) from oncely.dead_letters", number + 1).await;
    }
    // Somebody else's failure is the last one that the worker tells of.
    world.publish("payments", message("acme", "bad"), r#"{"do": "reject"}"#).await;
    world.wait_for("select count(*) from oncely.dead_letters", 3).await;
    world.wait_for_ready(&dead(&world), 3).await;
    world.wait_for("select count(*) from oncely.processes where consumers::text like '%\"bad\"%'", 1).await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    for tenant in [GONE, "acme"] {
        run(
            &mut world,
            &format!(
                "select oncely.emit('nowhere', '{tenant}', '{tenant}', tenant => '{tenant}', ordering_key => '{tenant}');
                 select oncely.grant_right(session_user, 'emit', 'orders', '{tenant}');
                 select oncely.record_action('', 'requeue', '{{\"tenant\": \"{tenant}\", \"key\": \"{tenant}-1\"}}', 1, 'for {tenant}: asked', 'me');
                 select oncely.record_action('', 'discard', '{{}}', 1, '{tenant}s is another word', 'me')"
            ),
        )
        .await;
    }
    // As a relay parks them, which parks none while no other event arrives.
    let park = "update oncely.events set state = 'parked', attempts = 2, reason = 'unroutable', last_error = 'no route'";
    run(&mut world, park).await;
    world.wait_for("select count(*) from oncely.events where state = 'parked'", 2).await;
    world.stop(worker).await;
    world.stop(relay).await;
    // Nothing is sealed while a transaction runs that was there before it, be it of another test's database.
    world
        .wait_within(
            Duration::from_secs(180),
            "select count(*) from oncely.seal_audit() as s
             where coalesce(s.until_time, (select max(until_time) from oncely.audit_seals)) > now() - interval '50 minutes'",
            1,
        )
        .await;
    world
}

fn dead(world: &World) -> String {
    format!("{}.dead", world.queue("payments"))
}

async fn entries(redis: &Redis) -> u64 {
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let buckets: Vec<String> = connection.keys("oncely:*").await.unwrap();
    let mut count = 0;
    for bucket in buckets {
        let length: u64 = connection.hlen(&bucket).await.unwrap();
        count += length;
    }
    count
}

async fn verified(world: &World) -> (i32, Value) {
    let output = world.oncely(&["audit", "verify", "--json"]).await;
    (output.status.code().unwrap(), serde_json::from_slice(&output.stdout).unwrap())
}

#[tokio::test]
async fn nothing_is_left_of_a_tenant_that_was_erased_and_all_of_the_others() {
    let redis = Redis::start().await.unwrap();
    let mut world = lived_in(&redis).await;
    assert!(!everywhere(&mut world, GONE).await.is_empty());
    assert_eq!((entries(&redis).await, verified(&world).await.0), (8, 0));
    let trail = world.count("select count(*) from oncely.audit").await;

    // Young keys are refused, and nothing happens; nor by a plan, nor where nobody agrees, nor by who is not the owner.
    let before = crate::rights::state(&mut world).await;
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!(
        (code, &said["found"]["young_keys"], said["refused"].is_string()),
        (4, &json!(7), true),
        "{said} {notes}"
    );
    let (code, said, _) = erase(&world, &["--forget-keys", "--dry-run"]).await;
    assert_eq!((code, &said["refused"], &said["dry_run"]), (0, &Value::Null, &json!(true)), "{said}");
    assert_eq!(
        [
            &said["found"]["keys"],
            &said["found"]["letters"],
            &said["found"]["events"],
            &said["found"]["rights"]
        ],
        [&json!(7), &json!(2), &json!(1), &json!(1)],
        "{said}"
    );
    assert_eq!(erase(&world, &["--forget-keys"]).await.0, 4);
    let operator = Login::create(&mut world, "oncely_operator").await;
    let [(name, url)] = operator.environment();
    let output =
        world.oncely_with(&["tenant", "erase", GONE, "--forget-keys", "--yes"], &[(name, &url)]).await;
    assert!(output.status.code() == Some(4) && told(&output).contains("owner"), "{}", told(&output));
    operator.drop_now(&mut world).await;
    assert_eq!(crate::rights::state(&mut world).await, before, "nothing was changed");

    let note = format!("the contract of {GONE} has ended");
    let (code, said, notes) = erase(&world, &["--forget-keys", "--yes", "--note", &note]).await;
    assert_eq!((code, &said["complete"]), (0, &json!(true)), "{said} {notes}");
    let receipt = &said["receipt"];
    let counts =
        ["keys", "mirror_entries", "letters", "copies", "events", "ordering_keys", "rights", "broken_spans"];
    assert_eq!(counts.map(|name| receipt[name].as_u64().unwrap()), [7, 5, 2, 2, 1, 1, 1, 0], "{receipt}");
    assert_eq!(receipt["trail"], json!(32), "{receipt}");

    // In no column of any table, in no queue, in no bucket.
    let left = everywhere(&mut world, GONE).await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].ends_with(&format!("{GONE}s is another word")), "{left:?}");
    assert_eq!(entries(&redis).await, 3);
    let copies = world.broker.take_exactly(&dead(&world), 1).await.unwrap();
    let mut copy = format!("{:?} {}", copies[0].properties, String::from_utf8_lossy(&copies[0].data));
    for (name, value) in copies[0].properties.headers().as_ref().unwrap().inner() {
        if let lapin::types::AMQPValue::LongString(text) = value {
            copy.push_str(&format!(" {name}={text}"));
        }
    }
    assert!(copy.contains("acme") && !copy.contains(GONE), "{copy}");
    assert_eq!(world.broker.ready(&dead(&world)).await.unwrap(), 0);
    for queue in [world.queue("payments"), format!("{}.retry.100ms", world.queue("payments"))] {
        assert_eq!(world.broker.ready(&queue).await.unwrap_or_default(), 0, "{queue}");
    }

    // The others are as they were.
    let of_others = "select (select count(*) from oncely.idempotency_keys where tenant = 'acme')
        + (select count(*) from oncely.dead_letters where tenant = 'acme') + (select count(*) from oncely.events where tenant = 'acme')
        + (select count(*) from oncely.rights where tenant = 'acme') + (select count(*) from oncely.operator_actions where reason = 'for acme: asked')";
    assert_eq!(world.count(of_others).await, 4 + 1 + 1 + 1 + 1);
    // The trail says what was done, and no longer whose it was; its seals say that somebody was erased.
    assert_eq!(world.count("select count(*) from oncely.audit").await, trail);
    let (code, verify) = verified(&world).await;
    assert!(code == 0 && verify["erased_spans"].as_u64().unwrap() > 0, "{verify}");
    let pseudonym = receipt["pseudonym"].as_str().unwrap();
    let kept = format!(
        "select count(*) from oncely.audit where tenant = '{pseudonym}' and key like 'erased-%' and detail is null"
    );
    assert_eq!(world.count(&kept).await, 32);
    let actions = format!(
        "select string_agg(concat(verb, ': ', reason), ', ' order by occurred_at) from oncely.operator_actions where tenant = '{pseudonym}' and verb ~ 'erase'"
    );
    let said = format!("the contract of {pseudonym} has ended");
    assert_eq!(world.text(&actions).await, Some(format!("begin erase: {said}, erase: {said}")));

    // Again: there is nothing to erase; and what is done for the others goes on.
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!(
        (code, &said["receipt"]["keys"], &said["receipt"]["trail"]),
        (0, &json!(0), &json!(0)),
        "{said} {notes}"
    );
    let worker = world.start("worker");
    world.publish("payments", message("acme", "a0"), "{}").await;
    world.publish("payments", message("acme", "new"), "{}").await;
    world.wait_for("select count(*) from app.effects", 9).await;
    world.wait_for_ready(&world.queue("payments"), 0).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from app.effects").await, 9, "a0 was known");
}

#[tokio::test]
async fn an_erasure_hides_no_change_of_the_trail_and_makes_none() {
    let redis = Redis::start().await.unwrap();
    let mut world = lived_in(&redis).await;
    run(&mut world, "update oncely.audit set attempt = 7 where tenant = 'acme' and key = 'acme-180'").await;
    let (code, verify) = verified(&world).await;
    assert_eq!((code, verify["breaks"].as_array().unwrap().len()), (1, 1), "{verify}");
    let (code, said, notes) = erase(&world, &["--forget-keys", "--yes", "--trail", "delete"]).await;
    assert_eq!(
        (code, &said["receipt"]["broken_spans"], &said["receipt"]["trail"]),
        (0, &json!(1), &json!(32)),
        "{said} {notes}"
    );
    assert!(notes.contains("not as they had been sealed"), "{notes}");
    assert_eq!(world.count("select count(*) from oncely.audit where tenant <> 'acme'").await, 0);
    let (code, verify) = verified(&world).await;
    assert_eq!((code, verify["breaks"].as_array().unwrap().len()), (1, 1), "{verify}");
    // What is changed after an erasure is noticed as before.
    run(&mut world, "update oncely.audit set attempt = 1 where tenant = 'acme' and key = 'acme-180'").await;
    run(
        &mut world,
        "select oncely.append_seal('erased', now() - interval '2 days', now() - interval '1 day')",
    )
    .await;
    let (code, verify) = verified(&world).await;
    assert_eq!(code, 1, "{verify}");
    assert!(verify["breaks"].to_string().contains("no seal covers"), "{verify}");
}

#[tokio::test]
async fn keys_that_are_past_their_retention_are_erased_without_being_forced() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world.register("payments", "7 days").await;
    run(
        &mut world,
        &format!(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, expires_at)
             select '{GONE}', 'payments', 'k' || n, 'COMPLETED', 1, now() - interval '9 days', now() - interval '8 days',
                 case when n = 1 then now() - interval '1 day' end
             from generate_series(0, 2500) as n"
        ),
    )
    .await;
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!((code, &said["receipt"]["keys"]), (0, &json!(2501)), "{said} {notes}");
    run(
        &mut world,
        &format!(
            "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
             values ('{GONE}', 'payments', 'young', 'COMPLETED', 1, now(), now()), ('{GONE}', 'unknown', 'k', 'COMPLETED', 1, '2020-01-01', '2020-01-01')"
        ),
    )
    .await;
    let (code, said, notes) = erase(&world, &["--yes"]).await;
    assert_eq!((code, &said["found"]["young_keys"]), (4, &json!(2)), "{said} {notes}");
    assert!(notes.contains("2 keys are not past their retention yet; the last one is at "), "{notes}");
}

#[tokio::test]
async fn a_tenant_is_exported_row_by_row_and_what_its_messages_hold_only_where_that_is_asked_for() {
    let redis = Redis::start().await.unwrap();
    let mut world = lived_in(&redis).await;
    run(
        &mut world,
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now() - interval '1 hour', 1, 'payments', 'n' || n, 'q', 'completed', 'w' from generate_series(1, 2500) as n",
    )
    .await;
    let lines = async |world: &World, arguments: &[&str]| -> Vec<Value> {
        let output = world.oncely(&[&["tenant", "export", "acme"][..], arguments].concat()).await;
        assert!(output.status.success(), "{}", told(&output));
        assert!(!stdout(&output).contains(GONE), "another tenant's");
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let plain = lines(&world, &[]).await;
    let of = |lines: &[Value], kind: &str| -> Vec<Value> {
        let schema = format!("oncely.tenant.{kind}/1");
        lines.iter().filter(|line| line["schema"] == schema.as_str()).cloned().collect()
    };
    let counts = &plain.last().unwrap()["counts"];
    let trail = world.count("select count(*) from oncely.audit where tenant = 'acme'").await;
    assert_eq!(counts, &json!({ "keys": 4, "decisions": trail, "letters": 1, "events": 1 }));
    assert_eq!(of(&plain, "decision").len(), usize::try_from(trail).unwrap());
    let keys: std::collections::HashSet<String> =
        of(&plain, "decision").iter().map(|line| line["key"].to_string()).collect();
    assert!(keys.len() > 2_500, "each row once: {}", keys.len());
    assert!(plain.iter().all(|line| line.get("body").is_none()
        && line.get("payload").is_none()
        && line.get("response").is_none()));
    assert_eq!(world.count("select count(*) from oncely.operator_actions where verb = 'reveal'").await, 0);

    // A key that was answered over HTTP, too.
    let answered = "update oncely.idempotency_keys set http_status = 201, http_headers = '[[\"x-token\", \"s3cret\"]]', http_body = 'x'
         where tenant = 'acme' and key = (select min(key) from oncely.idempotency_keys where tenant = 'acme' and status = 'COMPLETED')";
    run(&mut world, answered).await;
    let whole = lines(&world, &["--reveal", "--note", "asked for"]).await;
    assert!(whole.iter().any(|line| line["http_headers"] == json!(r#"{"x-token":["s3cret"]}"#)), "{whole:?}");
    assert_eq!(of(&whole, "letter")[0]["body"], json!(r#"{"do": "reject"}"#));
    assert_eq!(of(&whole, "event")[0]["payload"], json!("acme"));
    assert!(
        of(&whole, "key").iter().any(|line| line["response"] == json!(r#"{"done": "a0"}"#)),
        "{:?}",
        of(&whole, "key")
    );
    let recorded = "select count(*) from oncely.operator_actions where verb = 'reveal' and tenant = 'acme' and reason = 'asked for'";
    assert_eq!(world.count(recorded).await, 1);

    // What the configuration masks stays masked.
    world.configure("[console]\nmask = [\"/do\", \"/done\", \"/x-token\"]");
    let masked = lines(&world, &["--reveal"]).await;
    assert!(of(&masked, "letter")[0]["body"].as_str().unwrap().contains("•••"));
    assert!(masked.iter().all(|line| !line["http_headers"].to_string().contains("s3cret")), "{masked:?}");
    assert!(!masked.iter().any(
        |line| line["body"].to_string().contains("reject") || line["response"].to_string().contains("a0")
    ));

    // Who can't record it is shown nothing.
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let [(name, url)] = auditor.environment();
    let output = world.oncely_with(&["tenant", "export", "acme", "--reveal"], &[(name, &url)]).await;
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(4), ""), "{}", told(&output));
    let output = world.oncely_with(&["tenant", "export", "acme"], &[(name, &url)]).await;
    assert!(output.status.success(), "{}", told(&output));
    auditor.drop_now(&mut world).await;
    let none = world.oncely(&["tenant", "export", "nobody"]).await;
    assert_eq!(none.status.code(), Some(1), "{}", told(&none));
    let wrong = world.oncely(&["tenant", "export", ""]).await;
    assert_eq!(wrong.status.code(), Some(2), "{}", told(&wrong));
}
