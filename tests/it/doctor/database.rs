//! What the doctor says of a database: its settings, its tables, what they hold.

use oncely_doctor::{CheckSelection, Limits, Verdict};
use secrecy::SecretString;
use testbed::PgBouncer;

use super::{Case, all, case, go_through, of, only, run, says};
use crate::support::World;

const LIMITS: Limits = Limits {
    transaction: std::time::Duration::from_secs(900),
    dead_rows: 100,
    slot_bytes: 1 << 30,
    decisions: 20,
    pause: std::time::Duration::from_secs(86_400),
    skew: std::time::Duration::from_secs(1),
    requested_checkpoints: 10,
    wal_bytes: 1 << 30,
    prepared: std::time::Duration::from_secs(60),
};

const SETTINGS: &[Case] = &[
    case(
        "do $$ begin execute format('alter database %I set idle_session_timeout = ''1h''', current_database()); end $$",
        "pg.timeouts", Verdict::Warning, "idle_session_timeout: is 1h for this login",
        "do $$ begin execute format('alter database %I reset idle_session_timeout', current_database()); end $$",
    ),
    case(
        "do $$ begin execute format('alter database %I set synchronous_commit = off', current_database()); end $$",
        "pg.durability", Verdict::Error, "synchronous_commit: is off for this login",
        "do $$ begin execute format('alter database %I reset synchronous_commit', current_database()); end $$",
    ),
    case(
        "alter table oncely.events set (autovacuum_enabled = false)",
        "pg.bloat", Verdict::Warning, "oncely.events: autovacuum is turned off",
        "alter table oncely.events reset (autovacuum_enabled)",
    ),
    case(
        "update pg_index set indisvalid = false where indexrelid = 'oncely.dead_letters_open'::regclass",
        "pg.indexes", Verdict::Warning, "reindex index concurrently oncely.dead_letters_open",
        "update pg_index set indisvalid = true where indexrelid = 'oncely.dead_letters_open'::regclass",
    ),
    case(
        "update oncely.cell set name = 'elsewhere'",
        "pg.cell", Verdict::Error, "is the cell \"elsewhere\", not \"main\"",
        "update oncely.cell set name = 'main'",
    ),
    case(
        "insert into oncely._sqlx_migrations (version, description, success, checksum, execution_time)
         values (99990101000000, 'later', true, '\\x00', 0)",
        "pg.schema", Verdict::Info, "a newer Oncely has migrated this database",
        "delete from oncely._sqlx_migrations where version = 99990101000000",
    ),
    case(
        "update oncely._sqlx_migrations set checksum = checksum || '\\x00'::bytea
         where version = (select max(version) from oncely._sqlx_migrations)",
        "pg.schema", Verdict::Error, "applied from other files",
        "update oncely._sqlx_migrations set checksum = substring(checksum from 1 for length(checksum) - 1)
         where version = (select max(version) from oncely._sqlx_migrations)",
    ),
    // A server that says that it is older than it is.
    case(
        "set allow_system_table_mods = on;
         alter function pg_catalog.current_setting(text) rename to current_setting_of_server;
         create function pg_catalog.current_setting(text) returns text language sql stable as $$
             select case $1 when 'server_version_num' then '140012' else pg_catalog.current_setting_of_server($1) end
         $$",
        "pg.version", Verdict::Error, "Oncely needs 15 or later",
        "drop function pg_catalog.current_setting(text);
         alter function pg_catalog.current_setting_of_server(text) rename to current_setting",
    ),
    // A database whose clock goes wrong.
    case(
        "set allow_system_table_mods = on;
         alter function pg_catalog.clock_timestamp() rename to clock_timestamp_of_server;
         create function pg_catalog.clock_timestamp() returns timestamptz language sql volatile as $$
             select pg_catalog.clock_timestamp_of_server() + interval '1 hour'
         $$",
        "time.skew", Verdict::Warning, "1h apart (the database's is ahead)",
        "drop function pg_catalog.clock_timestamp();
         alter function pg_catalog.clock_timestamp_of_server() rename to clock_timestamp",
    ),
];

#[tokio::test]
async fn settings_of_the_server_and_the_schema_are_judged() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    go_through(&mut world, SETTINGS, LIMITS).await;
    // From 17 on.
    let has = "select count(*) from pg_settings where name = 'transaction_timeout'";
    if world.count(has).await == 1 {
        let case = case(
            "do $$ begin execute format('alter database %I set transaction_timeout = ''5s''', current_database()); end $$",
            "pg.timeouts",
            Verdict::Warning,
            "transaction_timeout: is 5s for this login",
            "do $$ begin execute format('alter database %I reset transaction_timeout', current_database()); end $$",
        );
        go_through(&mut world, &[case], LIMITS).await;
    }
}

const UPKEEP: &[Case] = &[
    case(
        "do $$
         declare
             partition text;
         begin
             for partition in
                 select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
                 where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'
             loop
                 execute format('drop table oncely.%I', partition);
             end loop;
         end $$",
        "pg.partitions", Verdict::Warning, "there is no partition but the default one",
        "",
    ),
    case(
        "select oncely.make_audit_partition(now() - interval '7 days')",
        "pg.partitions", Verdict::Warning, "its partitions ended",
        "select oncely.make_audit_partitions(now(), now() + interval '4 weeks')",
    ),
    case(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         values ('acme', now() + interval '200 days', 1, 'payments', 'k', 'q', 'completed', 'w')",
        "pg.default_partition", Verdict::Warning, "oncely.audit_default: has rows",
        "delete from oncely.audit_default",
    ),
    case(
        "update oncely.maintenance set clock_seen_at = now() - interval '1 day'",
        "pg.maintenance", Verdict::Warning, "the database's clock was not checked for 1day",
        "update oncely.maintenance set clock_seen_at = now()",
    ),
    case(
        "update oncely.maintenance set clock_refused_at = now()",
        "pg.maintenance", Verdict::Warning, "nothing is collected",
        "update oncely.maintenance set clock_refused_at = null",
    ),
    case(
        "update oncely.locks set since = now() - interval '3 days' where name = 'collection'",
        "pg.maintenance", Verdict::Warning, "a collection was due",
        "update oncely.locks set since = now()",
    ),
    case(
        "update oncely.locks set since = now() - interval '1 day' where name = 'count_letters'",
        "pg.maintenance", Verdict::Warning, "were not counted for 1day",
        "update oncely.locks set since = now()",
    ),
    case(
        "update oncely.secrets set created_at = now() - interval '400 days' where purpose = 'letter'",
        "secrets", Verdict::Info, "oncely secrets rotate letter",
        "update oncely.secrets set created_at = now()",
    ),
    case(
        "insert into oncely.secrets (purpose, created_at, signs_from, accepted_until)
         values ('mirror', now() - interval '2 days', now() - interval '2 days', now() - interval '1 day')",
        "secrets", Verdict::Info, "expired 1day ago",
        "delete from oncely.secrets where accepted_until is not null",
    ),
    case(
        "update oncely.maintenance set seal_mark_at = null",
        "trail.sealed", Verdict::Info, "no seal was begun yet",
        "",
    ),
    case(
        "update oncely.maintenance set seal_mark_at = now() - interval '3 days'",
        "trail.sealed", Verdict::Warning, "was last sealed 3days",
        "update oncely.maintenance set seal_mark_at = now()",
    ),
    case(
        "update oncely.consumers set retention = '30 days'",
        "retention", Verdict::Info, "oncely retention set payments 7days",
        "update oncely.consumers set retention = '7 days'",
    ),
    case(
        "update oncely.consumers set fingerprint = 'none'",
        "fingerprint", Verdict::Info, "consumers.payments.fingerprint is body, and was none",
        "update oncely.consumers set fingerprint = 'body'",
    ),
    case(
        "insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, attempt, queue, worker, state, generation,
             times, failure_group, exchange, routing_key, body_size, updated_at)
         values ('acme', gen_random_uuid(), 'payments', 'S3CR3T-KEY', now(), 'poison', 1, 'q', 'w', 'waiting', 1, 1, 'g', '', 'q', 0,
             now() - interval '3 days')",
        "horizon", Verdict::Warning, "a dead letter has waited for 3days, longer than redelivery_horizon plans for",
        "update oncely.dead_letters set updated_at = now()",
    ),
    case(
        "update oncely.dead_letters set updated_at = now() - interval '8 days'",
        "horizon", Verdict::Warning, "longer than keys are remembered",
        "update oncely.dead_letters set state = 'discarded'",
    ),
    case(
        "insert into oncely.letter_usage (tenant, letters, bytes, left_out, counted_at) values ('acme', 1, 1, 7, now())",
        "letters.quota", Verdict::Warning, "the messages of 7 open dead letters of the tenant acme",
        "update oncely.letter_usage set left_out = 0",
    ),
    case(
        "update oncely.dead_letters set state = 'waiting', reason = 'outcome_unknown', updated_at = now()",
        "letters.unknown", Verdict::Warning, "payments: 1 message waiting as outcome_unknown",
        "update oncely.dead_letters set state = 'discarded'",
    ),
    case(
        "update oncely.dead_letters set properties = '{}', body = 'x', encrypted_by = 'lost'",
        "letters.keys", Verdict::Warning, "the bodies of 1 dead letters are encrypted with key lost, which this process does not have",
        "update oncely.dead_letters set body = null, encrypted_by = null",
    ),
];

#[tokio::test]
async fn what_the_maintenance_leaves_undone_is_told() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    go_through(&mut world, UPKEEP, LIMITS).await;
}

#[tokio::test]
async fn dead_rows_that_nobody_clears_away_are_counted() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    // Somebody looks at them still, so that no vacuum may take them.
    let mut reader = world.database.connect().await.unwrap();
    sqlx::raw_sql("begin isolation level repeatable read; select 1").execute(&mut reader).await.unwrap();
    let statements = "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at)
        select 'acme', 'payments', 'k-' || n, 'COMPLETED', 1, now(), now() from generate_series(1, 300) as n;
        delete from oncely.idempotency_keys; select pg_stat_force_next_flush()";
    run(&mut world, statements).await;
    let config = world.config();
    let dead = "oncely.idempotency_keys: 300 of 300 rows are dead";
    says(&config, &only("pg.bloat", LIMITS), "pg.bloat", Verdict::Warning, dead).await;
    // By the book's limit that is nothing.
    says(&config, &only("pg.bloat", Limits::default()), "pg.bloat", Verdict::Ok, "").await;
}

#[tokio::test]
async fn handlers_are_judged_by_what_postgresql_knows_of_them() {
    let mut world = World::new().await;
    run(
        &mut world,
        "create function app.stable(m oncely.message) returns jsonb language sql stable as 'select null::jsonb';
         create procedure app.procedure(m oncely.message) language sql as 'select 1';
         create function app.mighty(m oncely.message) returns jsonb language sql security definer as 'select null::jsonb'",
    )
    .await;
    for (name, verdict, says_so) in [
        ("stable", Verdict::Warning, "app.stable is declared stable or immutable"),
        ("procedure", Verdict::Error, "app.procedure(oncely.message) is a procedure"),
        ("mighty", Verdict::Warning, "app.mighty is SECURITY DEFINER and belongs to"),
        ("missing", Verdict::Error, "there is no function app.missing(oncely.message)"),
        (
            "mute",
            Verdict::Error,
            "there is no function app.mute(oncely.message), but app.mute(oncely.message[])",
        ),
        ("handle", Verdict::Ok, ""),
    ] {
        let mut one = World::on_database_of(&world).await;
        one.consumer("payments", &format!("handler = {{ function = \"app.{name}\" }}"));
        says(&one.config(), &only("pg.handler", LIMITS), "pg.handler", verdict, says_so).await;
    }
}

#[tokio::test]
async fn a_database_without_migrations_is_told_and_nothing_else_is_taken_for_fine() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.database = testbed::Database::create(&world.urls.postgres).await.unwrap();
    let report = all(&world.config()).await;
    let schema = of(&report, "pg.schema");
    assert_eq!(schema.verdict, Verdict::Error);
    assert!(schema.findings[0].text.contains("run `oncely migrate`"), "{schema:#?}");
    for examined in report.checks.iter().filter(|examined| {
        examined.check.group() == "pg"
            && !["pg.schema", "pg.pooler", "pg.version", "pg.tls", "pg.encoding"].contains(&examined.check.id)
    }) {
        assert_eq!(examined.verdict, Verdict::Skipped, "{examined:#?}");
        assert_eq!(examined.findings[0].text, "fix pg.schema first", "{examined:#?}");
    }
}

#[tokio::test]
async fn a_database_that_does_not_store_utf_8_is_an_error() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let name = format!("ascii_{}", fastrand::u64(..));
    let create = format!("create database {name} encoding 'SQL_ASCII' locale 'C' template template0");
    sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(&mut world.sql).await.unwrap();
    let mut config = world.config();
    let (server, _) = world.urls.postgres.rsplit_once('/').unwrap();
    config.postgres.url = SecretString::from(format!("{server}/{name}"));
    let report = all(&config).await;
    let encoding = of(&report, "pg.encoding");
    assert_eq!(("pg.encoding", encoding.verdict), ("pg.encoding", Verdict::Error), "{encoding:#?}");
    let drop = format!("drop database {name} with (force)");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop)).execute(&mut world.sql).await.unwrap();
}

#[tokio::test]
async fn plaintext_is_told_where_it_is_allowed_and_refused_where_it_is_not() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.with_redis(&world.urls.redis.clone(), "");
    let mut config = world.config();
    config.postgres.allow_plaintext = true;
    config.rabbitmq.allow_plaintext = true;
    if let Some(mirror) = &mut config.mirror {
        mirror.allow_plaintext = true;
    }
    for (check, verdict) in
        [("pg.tls", Verdict::Info), ("mq.tls", Verdict::Info), ("redis.tls", Verdict::Info)]
    {
        says(&config, &CheckSelection::default(), check, verdict, "allow_plaintext: is true").await;
    }
    let mut config = world.config();
    // Of a network for documents: nobody is there, and nobody is asked.
    config.postgres.url = SecretString::from("postgres://somebody:S3CR3T@192.0.2.1/db");
    config.rabbitmq.url = SecretString::from("amqp://somebody:S3CR3T@192.0.2.1/%2f");
    if let Some(mirror) = &mut config.mirror {
        mirror.url = SecretString::from("redis://:S3CR3T@192.0.2.1/");
    }
    for (check, verdict) in
        [("pg.tls", Verdict::Error), ("mq.tls", Verdict::Error), ("redis.tls", Verdict::Error)]
    {
        says(&config, &CheckSelection::default(), check, verdict, "goes to 192.0.2.1 in plaintext").await;
    }
    let report = all(&config).await;
    assert!(report.unreachable.is_empty() && !format!("{report:?}").contains("S3CR3T"), "{report:?}");
}

#[tokio::test]
async fn servers_that_do_not_answer_are_told_and_what_they_know_is_skipped() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.with_redis("redis://127.0.0.1:1/", "");
    let mut config = world.config();
    config.postgres.url = SecretString::from("postgres://somebody:S3CR3T@127.0.0.1:1/db");
    config.rabbitmq.url = SecretString::from("amqp://somebody:S3CR3T@127.0.0.1:1/%2f");
    for (check, verdict) in
        [("pg.reach", Verdict::Error), ("mq.reach", Verdict::Error), ("redis.reach", Verdict::Warning)]
    {
        says(&config, &CheckSelection::default(), check, verdict, "127.0.0.1:1").await;
    }
    let report = all(&config).await;
    assert_eq!(report.unreachable.len(), 3, "{report:#?}");
    assert!(!format!("{report:?}").contains("S3CR3T"), "{report:?}");
    for examined in report
        .checks
        .iter()
        .filter(|examined| !examined.check.id.ends_with(".reach") && examined.check.group() != "config")
    {
        assert_eq!(examined.verdict, Verdict::Skipped, "{examined:#?}");
    }
}

#[tokio::test]
async fn a_pooler_in_between_is_told() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let url = world.database.url().to_owned();
    let settings = "ignore_startup_parameters = extra_float_digits,options";
    let Some(pooler) = PgBouncer::start(&url, settings, "").await.unwrap() else { return };
    let mut config = world.config();
    config.postgres.url = SecretString::from(pooler.through(&url).unwrap());
    says(&config, &only("pg.pooler", LIMITS), "pg.pooler", Verdict::Error, "pooler in between").await;
}
