//! Evidence, read from the tables and the mirror.

use super::*;

/// The product's tables, as far as the judge reads them.
const TABLES: &str = "
create schema oncely;
create table oncely.idempotency_keys (tenant text, consumer text, key text, status text, fingerprint bytea);
create table oncely.audit (tenant text, consumer text, key text, outcome text);
create table oncely.mirror_queue (id integer);
create schema judge;
create table judge.effects (tenant text, key text, n bigint);
create table judge.log (
    tenant text, key text, digest text, attempt integer, application text, day integer default 0, beside text
);
create table judge.hot (n bigint);
create table judge.wrong_balances (tenant text, account text, balance bigint, total bigint);
insert into judge.hot values (0);
create table judge.trail (
    place bigint, tenant text, key text, outcome text, attempt integer, reason text, error_code text, at numeric
);
create table judge.aged (tenant text, key text, days bigint);
create table judge.discarded (tenant text, key text);
create table judge.refused (tenant text, key text);
create table judge.trespasses (who text, what text);
create function judge.today() returns integer language sql as 'select 0';
create function judge.note() returns void language sql as '';
";

async fn run(connection: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.unwrap();
}

#[tokio::test]
async fn evidence_is_read_from_the_tables() {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, TABLES).await;
    let one = intent("a", Act::Work, 0);
    let sent = sent(&[(&one, Class::Confirmed)]);
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(found(&sent, &evidence), [((Invariant::I2, What::Lost), 1)].into());

    run(
        &mut connection,
        &format!(
            "insert into judge.effects values ('acme', 'a', 1);
             insert into judge.log values ('acme', 'a', '{}', 1, 'worker-1');
             insert into oncely.idempotency_keys values ('acme', 'faults', 'a', 'COMPLETED', 'f');
             insert into oncely.audit values ('acme', 'faults', 'a', 'completed')",
            digest(&one.body)
        ),
    )
    .await;
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(judge(&sent, &evidence), []);

    // A second effect as a second row, which no constraint stops.
    run(
        &mut connection,
        "insert into judge.effects values ('acme', 'a', 1); insert into oncely.mirror_queue values (1)",
    )
    .await;
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    let expected = [
        ((Invariant::I1, What::Doubled), 1),
        ((Invariant::I1, What::Books), 1),
        ((Invariant::I10, What::MirrorQueue), 1),
    ];
    assert_eq!(found(&sent, &evidence), expected.into());
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn an_entry_of_the_mirror_must_belong_to_a_completed_row_of_this_epoch() {
    let (servers, database, mut connection) = migrated().await;
    run(
        &mut connection,
        "insert into oncely.idempotency_keys
            (tenant, consumer, key, status, fingerprint, attempts, created_at, completed_at, reason)
         values ('acme', 'faults', 'done', 'COMPLETED', decode(repeat('00ff', 8), 'hex'), 1, now(), now(), null),
            ('acme', 'faults', 'failed', 'FAILED', decode(repeat('00ff', 8), 'hex'), 1, now(), now(), 'permanent')",
    )
    .await;
    let (now, secret): (String, Vec<u8>) =
        sqlx::query_as("select oncely.epoch(), secret from oncely.secrets where purpose = 'mirror'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    // The format, written out once more.
    let tag = |epoch: &str, key: &str| {
        let mut hasher =
            blake3::Hasher::new_keyed(&blake3::derive_key("oncely 2026-11-20 mirror tag v1", &secret));
        for part in [epoch.as_bytes(), b"acme", b"faults", key.as_bytes(), &[0x00, 0xff].repeat(8)] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        hasher.finalize().as_bytes()[..16].to_vec()
    };
    let evidence = |tag: &[u8], bucket: &str| {
        let key = blake3::derive_key("oncely 2026-11-22 mirror evidence v1", &secret);
        let mac = blake3::Hasher::new_keyed(&key).update(tag).update(bucket.as_bytes()).finalize();
        mac.as_bytes()[..8].to_vec()
    };
    let entry = |tag: Vec<u8>| {
        let number = u32::from_be_bytes(tag[..4].try_into().unwrap()) % 64;
        let bucket = format!("oncely:2:1800000:64:7:{number:x}");
        Entry { field: tag[8..].to_vec(), value: evidence(&tag, &bucket), bucket }
    };
    let good = entry(tag(&now, "done"));
    let misplaced = Entry { bucket: "oncely:2:1800000:64:7:ffff".to_owned(), ..good.clone() };
    let unproved = Entry { value: good.field.clone(), ..good.clone() };
    for wrong in [
        entry(tag(&now, "failed")),
        entry(tag(&now, "never heard of")),
        entry(tag("epoch-0", "done")),
        entry(b"junkjunkjunkjunk".to_vec()),
        misplaced,
        unproved,
    ] {
        let found = find_stale(&mut connection, None, vec![good.clone(), wrong.clone()]).await.unwrap();
        assert_eq!(found, [wrong]);
    }
    // And as it comes out of Redis.
    let client = redis::Client::open(servers.urls().redis.clone()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let bucket = format!("oncely:2:1:1:{}:0", uuid::Uuid::new_v4());
    let foreign = Entry { bucket: bucket.clone(), field: b"01234567".to_vec(), value: b"89abcdef".to_vec() };
    let mut set = redis::cmd("HSET");
    set.arg(&bucket).arg(&foreign.field).arg(&foreign.value);
    let _: () = set.query_async(&mut redis).await.unwrap();
    assert!(read_entries(&servers.urls().redis).await.unwrap().contains(&foreign));
    let _: () = redis::cmd("DEL").arg(&bucket).query_async(&mut redis).await.unwrap();
    drop(connection);
    database.drop_now().await.unwrap();
}

/// A new database with the product's migrations and the judge's books; the servers end with the first value.
async fn migrated() -> (Servers, Database, PgConnection) {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let mut connection = database.migrate(&folder).await.unwrap();
    run(&mut connection, testbed::checker::SCHEMA).await;
    (servers, database, connection)
}

#[tokio::test]
async fn a_payment_that_is_captured_twice_or_moves_money_twice_is_found() {
    let (_servers, database, mut connection) = migrated().await;
    let payments = [("a", 7, 100), ("b", 7, 20), ("c", 8, 3)]
        .map(|(name, customer, amount)| intent(name, Act::Work, 0).payment(customer, amount).padded(9));
    let sent = sent(&payments.each_ref().map(|payment| (payment, Class::Confirmed)));
    let capture = |number: usize| {
        let Intent { tenant, key, body, .. } = payments[number].clone();
        let payload = String::from_utf8(body.clone()).unwrap();
        let body: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            r#"select judge.capture(array[jsonb_populate_record(null::oncely.message, '{{
                "seq": {number}, "tenant": "{tenant}", "key": "{key}", "attempt": 1, "body": "\\x{body}", "payload": {payload}
            }}')])"#
        )
    };
    for number in 0..payments.len() {
        run(&mut connection, &capture(number)).await;
    }
    run(
        &mut connection,
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select tenant, 'payments', key, 'COMPLETED', 1, now(), now() from judge.log;
         insert into oncely.audit (occurred_at, worker, queue, tenant, consumer, key, outcome, attempt)
         select now(), 'w', 'q', tenant, 'payments', key, 'completed', 1 from judge.log",
    )
    .await;
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "payments").await.unwrap();
    assert_eq!(judge(&sent, &evidence), []);
    let balances: String = sqlx::query_scalar(
        "select string_agg(account || ' ' || balance, ', ' order by account) from judge.accounts",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(balances, "customer:7 -120, customer:8 -3, revenue 123");

    run(&mut connection, "update judge.accounts set balance = balance - 20 where account = 'customer:7'")
        .await;
    evidence.read_tables(&mut connection, "payments").await.unwrap();
    let violations = judge(&sent, &evidence);
    assert_eq!(count(&violations, &[What::Books]), 1);
    assert_eq!(violations[0].examples, ["acme/customer:7 has the balance -140, and the log says -120"]);

    run(&mut connection, &capture(2)).await;
    evidence.read_tables(&mut connection, "payments").await.unwrap();
    assert_eq!(count(&judge(&sent, &evidence), &[What::Doubled]), 1);
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn a_trail_keeps_its_order_and_its_times_while_clocks_are_set_back_and_days_go_by() {
    let (_servers, database, mut connection) = migrated().await;
    let failed = |attempt: i32, outcome: &str| {
        format!(
            "insert into oncely.audit (occurred_at, worker, queue, tenant, consumer, key, outcome, attempt, reason)
             values (clock_timestamp(), 'w', 'q', 'acme', 'faults', 'a', '{outcome}', {attempt}, 'error')"
        )
    };
    run(&mut connection, &failed(1, "retried")).await;
    run(&mut connection, "select judge.age('-3 seconds')").await;
    run(&mut connection, &failed(2, "retried")).await;
    run(&mut connection, "select judge.age('3 seconds')").await;
    run(&mut connection, "select judge.age('2 days')").await;
    run(&mut connection, &failed(3, "dead_lettered")).await;
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    let steps = &evidence.trail[&key("a")];
    assert_eq!(steps.iter().map(|step| step.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let gaps: Vec<f64> = steps.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!((0.0..2.0).contains(&gaps[0]), "{gaps:?}");
    assert!((172_800.0..172_810.0).contains(&gaps[1]), "{gaps:?}");
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn counts_of_the_same_span_before_and_after_days_went_by_keep_apart() {
    let (_servers, database, mut connection) = migrated().await;
    let count = "insert into oncely.stats
            (at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks,
             outages, durations)
         select now_ + days * interval '1 day', 'faults', '00000000-0000-0000-0000-000000000001', 1, 1, 0, 0, 0, 0, 0, 0, 0,
             array_fill(0, array[20])
         from date_trunc('minute', now()) as now_, generate_series(0, -4, -2) as days";
    run(&mut connection, count).await;
    run(&mut connection, "select judge.age('2 days')").await;
    let moved: i64 = sqlx::query_scalar(
        "select count(*) from oncely.stats, generate_series(-6, -2, 2) as days
         where at between now() + days * interval '1 day' - interval '2 minutes' and now() + days * interval '1 day'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(moved, 3);
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_aged_by_itself_is_older_than_its_neighbours_once() {
    let (_servers, database, mut connection) = migrated().await;
    run(
        &mut connection,
        "insert into judge.log (tenant, key, attempt, digest) select 'acme', 'k' || n, 1, '' from generate_series(1, 40) as n;
         insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
         select tenant, 'faults', key, 'COMPLETED', 1, now(), now() from judge.log;
         select judge.age('1 day'); select judge.age_apart(3, 5)",
    )
    .await;
    run(&mut connection, "select judge.age_apart(3, 5)").await;
    let aged: Vec<(bool, i64)> = sqlx::query_as(
        "select hashtext(key) & 7 = 3, round(extract(epoch from now() - completed_at) / 86400)::bigint
         from oncely.idempotency_keys group by 1, 2 order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(aged, [(false, 1), (true, 6)]);
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    let days: std::collections::BTreeSet<i64> = evidence.day_of.values().copied().collect();
    assert_eq!(days, [-5, 0].into());
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn a_body_in_plaintext_and_what_an_observer_does_are_found() {
    let (_servers, database, mut connection) = migrated().await;
    let letter = |key: &str, from_client: bool, encrypted_by: &str| {
        format!(
            "insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state,
                generation, times, failure_group, exchange, routing_key, properties, body, body_size, updated_at, from_client,
                encrypted_by)
             values ('acme', gen_random_uuid(), 'faults', '{key}', now(), 'poison', 1, 'q', 'w', 'waiting', 1, 1, '', '', '', '{{}}', 'x', 1,
                now(), {from_client}, {encrypted_by})"
        )
    };
    run(&mut connection, &letter("secret", false, "'trial'")).await;
    run(&mut connection, &letter("of an application", true, "null")).await;
    let mut evidence = Evidence { encrypted: true, ..Evidence::default() };
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(count(&judge(&Sent::default(), &evidence), &[What::Plaintext]), 0);
    run(&mut connection, &letter("open", false, "null")).await;
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(count(&judge(&Sent::default(), &evidence), &[What::Plaintext]), 1);

    let saw = |outcome: &str, reason: &str| {
        format!(
            "insert into oncely.audit (occurred_at, worker, queue, tenant, consumer, key, outcome, attempt, reason)
             values (clock_timestamp(), 'w', 'q', 'acme', 'charges.observe', 'a', '{outcome}', 0, {reason})"
        )
    };
    run(&mut connection, &saw("observed", "null")).await;
    run(&mut connection, &saw("observed", "'duplicate'")).await;
    // Read once more when days have gone by, it is still the same.
    run(&mut connection, "select judge.note(); select judge.age('2 days')").await;
    evidence.observed.read(&mut connection).await.unwrap();
    let seen = [("first".to_owned(), 1), ("duplicate".to_owned(), 1)];
    assert_eq!(evidence.observed.seen[&key("a")], seen.into());
    assert!(evidence.observed.done.is_empty());
    run(&mut connection, &saw("completed", "null")).await;
    evidence.observed.read(&mut connection).await.unwrap();
    assert_eq!(evidence.observed.done, ["acme/a: completed"]);
    drop(connection);
    database.drop_now().await.unwrap();
}
