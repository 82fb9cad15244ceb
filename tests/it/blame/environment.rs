//! Errors of the environment's kind: the message's where its neighbours succeed, everybody's where all fail.

use std::time::Duration;

use sqlx::Executor as _;

use super::publish_many;
use crate::support::{World, message};

#[tokio::test]
async fn two_messages_of_a_broken_branch_keep_no_healthy_one_waiting() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let worker = world.start("worker");
    // Before anybody else is there: nothing says yet whose failure it is.
    publish_many(&world, "broken", "bad", 2, r#"{"do": "missing_table"}"#).await;
    world.wait_for("select count(*) from oncely.idempotency_keys where status = 'IN_PROGRESS'", 2).await;
    world.wait_for_line(&worker, "no message succeeds").await;
    assert!(worker.output().contains("42P01") && worker.output().contains("bad"), "{}", worker.output());
    publish_many(&world, "healthy", "good", 50, "{}").await;
    world.wait_within(Duration::from_secs(5), "select count(*) from app.effects", 50).await;
    // Those are the witnesses: now the failure is the two messages' own.
    let dead =
        "select count(*) from oncely.audit where outcome = 'dead_lettered' and reason = 'attempts_exhausted'
        and error_code = '42P01' and attempt = 3 and tenant = 'broken'";
    // One that arrived late needs one of its own.
    publish_many(&world, "healthy", "more", 1, "{}").await;
    world.wait_for(dead, 2).await;
    world.wait_for_ready(&format!("{}.dead", world.queue("payments")), 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_broken_branch_in_the_middle_of_a_batch_is_charged_at_once() {
    for form in ["handler = { function = \"app.handle_batch\", batch = true }", ""] {
        let mut world = World::new().await;
        world.consumer("payments", &format!("lanes = 1\n{form}"));
        world.apply_topology().await;
        publish_many(&world, "healthy", "a", 20, "{}").await;
        world.publish("payments", message("broken", "bad"), r#"{"do": "missing_table"}"#).await;
        publish_many(&world, "healthy", "b", 20, "{}").await;
        let worker = world.start("worker");
        world.wait_for("select count(*) from app.effects", 40).await;
        world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 1).await;
        assert_eq!(world.count("select count(*) from oncely.audit where tenant = 'broken'").await, 3);
        assert!(!worker.output().contains("no attempt is spent"), "{}", worker.output());
        world.stop(worker).await;
    }
}

#[tokio::test]
async fn a_table_that_all_miss_pauses_the_consumer_and_spends_no_attempt() {
    let mut world = World::new().await;
    world.consumer("payments", "retry = { delays = [\"50ms\"], max_attempts = 1 }");
    world.apply_topology().await;
    publish_many(&world, "acme", "k", 60, r#"{"do": "missing_table"}"#).await;
    let worker = world.start("worker");
    world.wait_for_lines(&worker, "no attempt is spent", 4).await;
    assert_eq!(world.count("select count(*) from oncely.audit").await, 0, "no attempt is spent");
    world.sql.execute("create table app.not_there (n integer)").await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 60).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn more_bad_messages_than_the_broker_sends_ahead_let_a_good_one_behind_them_through() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 10\nprefetch = 20");
    world.apply_topology().await;
    let worker = world.start("worker");
    publish_many(&world, "broken", "bad", 60, r#"{"do": "missing_table"}"#).await;
    publish_many(&world, "healthy", "good", 1, "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let dead = "select count(*) from oncely.audit where outcome = 'dead_lettered'";
    for number in 0..200 {
        if world.count(dead).await == 60 {
            break;
        }
        // Some traffic, for a bad one needs a witness after its failure.
        publish_many(&world, "healthy", &format!("more{number}-"), 1, "{}").await;
        world.wait_for("select count(*) from app.effects", number + 2).await;
    }
    world.wait_for(dead, 60).await;
    let early = "select count(*) from oncely.audit where outcome = 'dead_lettered' and attempt < 3";
    assert_eq!(world.count(early).await, 0, "waiting in a queue spends nothing");
    world.stop(worker).await;
}

#[tokio::test]
async fn a_temporary_table_that_each_message_makes_spends_no_attempt() {
    let mut world = World::new().await;
    world
        .sql
        .execute(
            "create function app.with_table(message oncely.message) returns jsonb language plpgsql as $$
            begin
                create temp table scratch (n integer) on commit drop;
                insert into scratch values (1);
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.consumer("payments", "lanes = 1\nhandler = { function = \"app.with_table\" }");
    world.apply_topology().await;
    publish_many(&world, "acme", "k", 30, "{}").await;
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects where attempt = 1", 30).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

#[tokio::test]
async fn a_server_that_one_branch_calls_and_that_is_away_stops_nobody_else() {
    let mut world = World::new().await;
    world
        .sql
        .execute(
            "create function app.calls_out(message oncely.message) returns jsonb language plpgsql as $$
            begin
                if message.tenant = 'broken' then
                    -- As dblink and postgres_fdw say that their server is away, while ours is not.
                    raise exception using errcode = '08001', message = 'could not connect';
                end if;
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.consumer("payments", "handler = { function = \"app.calls_out\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    publish_many(&world, "broken", "bad", 2, "{}").await;
    publish_many(&world, "healthy", "good", 50, "{}").await;
    world.wait_for("select count(*) from app.effects", 50).await;
    // One that failed late needs a witness of its own.
    let failed =
        "select count(*) from oncely.idempotency_keys where tenant = 'broken' and last_error is not null";
    world.wait_for(failed, 2).await;
    publish_many(&world, "healthy", "more", 1, "{}").await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'dead_lettered'", 2).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn a_handler_that_finds_poison_in_all_stops_and_says_so() {
    let mut world = World::new().await;
    world.consumer("payments", "batch = 100");
    world.apply_topology().await;
    world
        .sql
        .execute("create table app.switch (broken boolean); insert into app.switch values (true)")
        .await
        .unwrap();
    world
        .sql
        .execute(
            "create function app.switched(message oncely.message) returns jsonb language plpgsql as $$
            begin
                if (select broken from app.switch) then perform 1 / 0; end if;
                insert into app.effects (tenant, consumer, key, attempt)
                    values (message.tenant, message.consumer, message.key, message.attempt);
                return null;
            end $$",
        )
        .await
        .unwrap();
    world.configure("");
    let text = std::fs::read_to_string(world.file()).unwrap().replace("app.handle", "app.switched");
    std::fs::write(world.file(), text).unwrap();
    publish_many(&world, "acme", "k", 300, "{}").await;
    let worker = world.start("worker");
    world.wait_for_lines(&worker, "no attempt is spent", 3).await;
    assert_eq!(world.count("select count(*) from oncely.audit").await, 0);
    world.sql.execute("update app.switch set broken = false").await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 300).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

/// SQLSTATEs that a handler may raise: those that were charged once, and others as chance has it. Not those that say that all is well, nor
/// the handler's own words on a message.
fn sqlstates(random: usize) -> Vec<String> {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random_codes = fastrand::Rng::with_seed(seed);
    let mut codes: Vec<String> =
        ["23514", "55P03", "22012", "P0001", "40P01", "57P01", "ORD01"].map(str::to_owned).into();
    while codes.len() < 7 + random {
        let letter = |_| random_codes.alphanumeric().to_ascii_uppercase();
        let code: String = (0..5).map(letter).collect();
        if !["00", "01", "02"].contains(&&code[..2]) && !code.starts_with("ONC") {
            codes.push(code);
        }
    }
    codes
}

/// Raises the SQLSTATE of `app.switch` for every message, and else the one that a message names.
const RAISING: &str = "create table app.switch (code text);
    insert into app.switch values (null);
    create function app.raising(message oncely.message) returns jsonb language plpgsql as $$
    declare code text := coalesce((select code from app.switch), message.payload ->> 'code');
    begin
        if code is not null then
            raise exception using errcode = code, message = 'broken';
        end if;
        insert into app.effects (tenant, consumer, key, attempt)
            values (message.tenant, message.consumer, message.key, message.attempt);
        return null;
    end $$";

#[tokio::test]
async fn no_sqlstate_that_strikes_all_for_a_while_spends_an_attempt_and_each_that_strikes_one_does() {
    let mut world = World::new().await;
    world.sql.execute(RAISING).await.unwrap();
    world.consumer(
        "payments",
        "handler = { function = \"app.raising\" }\nretry = { delays = [\"50ms\"], max_attempts = 2 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    let (mut good, mut bad, mut more) = (0, 0, 0);
    for code in sqlstates(5) {
        sqlx::query("update app.switch set code = $1").bind(&code).execute(&mut world.sql).await.unwrap();
        publish_many(&world, "acme", &format!("all-{code}-"), 25, "{}").await;
        good += 25;
        // For as long as the fault lasts: twice the time after which a message that is alone is judged.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let charged = "select count(*) from oncely.audit where key like 'all-%' and outcome <> 'completed'";
        assert_eq!(world.count(charged).await, 0, "{code} has spent attempts");
        world.sql.execute("update app.switch set code = null").await.unwrap();
        world.wait_for("select count(*) from app.effects where attempt = 1", good + more).await;
        // A lock is the message's only after a minute: `contention` has that.
        if code == "55P03" || code.starts_with("40") {
            continue;
        }
        let body = format!(r#"{{"code": "{code}"}}"#);
        publish_many(&world, "acme", &format!("one-{code}-"), 1, &body).await;
        bad += 1;
        let dead = "select count(*) from oncely.audit where key like 'one-%' and outcome = 'dead_lettered'";
        for _ in 0..200 {
            if world.count(dead).await == bad {
                break;
            }
            publish_many(&world, "acme", &format!("more{more}-"), 1, "{}").await;
            more += 1;
            world.wait_for("select count(*) from app.effects where attempt = 1", good + more).await;
        }
        assert_eq!(world.count(dead).await, bad, "{code} of one message alone is not its own");
    }
    world.stop(worker).await;
    assert_eq!(
        world.count("select count(*) from oncely.audit where outcome = 'retried' and key like 'all-%'").await,
        0
    );
}

#[tokio::test]
async fn a_message_that_is_alone_and_fails_is_judged_and_the_next_one_waits_for_a_witness() {
    let mut world = World::new().await;
    world.sql.execute(RAISING).await.unwrap();
    world.consumer(
        "payments",
        "handler = { function = \"app.raising\" }\nretry = { delays = [\"50ms\"], max_attempts = 2 }",
    );
    world.apply_topology().await;
    let worker = world.start("worker");
    publish_many(&world, "acme", "first", 1, r#"{"code": "23514"}"#).await;
    let dead = "select count(*) from oncely.audit where outcome = 'dead_lettered' and attempt = 2";
    world.wait_for(dead, 1).await;
    publish_many(&world, "acme", "second", 1, r#"{"code": "23514"}"#).await;
    world.wait_for_line(&worker, "no message succeeds").await;
    assert_eq!(world.count("select count(*) from oncely.audit where key like 'second%'").await, 0);
    publish_many(&world, "acme", "good", 1, "{}").await;
    world.wait_for(dead, 2).await;
    world.stop(worker).await;
}

/// Raises a SQLSTATE of `app.codes` for every message and with each try, another one each time; nothing once the table is empty. Counts the
/// tries, which no rollback takes back.
const RAISING_ALL: &str = "create table app.codes (code text);
    create sequence app.tries;
    create function app.raising_all(message oncely.message) returns jsonb language plpgsql as $$
    declare
        chosen text := (select code from app.codes order by random() limit 1);
    begin
        perform nextval('app.tries');
        if chosen is not null then
            raise exception using errcode = chosen, message = 'broken';
        end if;
        insert into app.effects (tenant, consumer, key, attempt)
            values (message.tenant, message.consumer, message.key, message.attempt);
        return null;
    end $$;
    create function app.raising_all(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
    begin
        return query select m.seq, app.raising_all(m) from unnest(messages) as m;
    end $$";

/// The classes of PostgreSQL's SQLSTATEs (appendix A of its documentation), but for success, warnings and no data.
const CLASSES: &str = "03 08 09 0A 0B 0F 0L 0P 0Z 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 3B 3D 3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX";

/// SQLSTATEs at random, half of them of PostgreSQL's classes: any that a function can raise, but for those of Oncely's own functions.
pub(crate) fn any_sqlstates() -> Vec<String> {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let classes: Vec<&str> = CLASSES.split(' ').collect();
    let mut codes = Vec::new();
    while codes.len() < 500 {
        let mut code: String = (0..5).map(|_| chance.alphanumeric().to_ascii_uppercase()).collect();
        if chance.bool() {
            code.replace_range(..2, classes[chance.usize(..classes.len())]);
            // The codes that are in use.
            code.replace_range(2..4, ["00", "P0", "50"][chance.usize(..3)]);
        }
        if code != "00000" && !code.starts_with("ONC") {
            codes.push(code);
        }
    }
    codes
}

#[tokio::test]
async fn whatever_sqlstates_all_messages_meet_for_a_while_none_spends_an_attempt() {
    let mut world = World::new().await;
    world.sql.execute(RAISING_ALL).await.unwrap();
    sqlx::query("insert into app.codes select unnest($1::text[])")
        .bind(any_sqlstates())
        .execute(&mut world.sql)
        .await
        .unwrap();
    let retry = "retry = { delays = [\"50ms\"], max_attempts = 1 }";
    world.consumer("payments", &format!("handler = {{ function = \"app.raising_all\" }}\n{retry}"));
    world.consumer(
        "batches",
        &format!("handler = {{ function = \"app.raising_all\", batch = true }}\n{retry}"),
    );
    world.apply_topology().await;
    for number in 0..100 {
        for consumer in ["payments", "batches"] {
            world.publish(consumer, message("acme", &format!("k{number}")), "{}").await;
        }
    }
    let worker = world.start("worker");
    // Each once at least.
    world.wait_for("select (last_value >= 250)::integer::bigint from app.tries", 1).await;
    let charged = "select count(*) from oncely.audit";
    assert_eq!(
        world.count(charged).await,
        0,
        "{:?}",
        world.text("select a::text from oncely.audit as a").await
    );
    world.sql.execute("truncate app.codes").await.unwrap();
    world.wait_for("select count(*) from app.effects where attempt = 1", 200).await;
    world.stop(worker).await;
    assert_eq!(world.count("select count(*) from oncely.audit where outcome <> 'completed'").await, 0);
}

/// As [`RAISING_ALL`], for some tries of a consumer in a row: a fault of all its messages that begins and ends while they are at work.
const RAISING_FOR_A_WHILE: &str = "create table app.codes (code text);
    create table app.fault (consumer text, first bigint, past bigint);
    create function app.raising_all(message oncely.message) returns jsonb language plpgsql as $$
    declare
        -- No rollback takes it back.
        try bigint := nextval('app.tries_of_' || message.consumer);
    begin
        if exists (select from app.fault where consumer = message.consumer and try >= first and try < past) then
            raise exception using errcode = (select code from app.codes order by random() limit 1), message = 'broken';
        end if;
        insert into app.effects (tenant, consumer, key, attempt)
            values (message.tenant, message.consumer, message.key, message.attempt);
        return null;
    end $$;
    create function app.raising_all(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
    begin
        return query select m.seq, app.raising_all(m) from unnest(messages) as m;
    end $$";

#[tokio::test]
async fn a_fault_of_all_that_begins_and_ends_at_any_message_spends_no_attempt() {
    let mut world = World::new().await;
    world.sql.execute(RAISING_FOR_A_WHILE).await.unwrap();
    sqlx::query("insert into app.codes select unnest($1::text[])")
        .bind(any_sqlstates())
        .execute(&mut world.sql)
        .await
        .unwrap();
    let consumers: Vec<String> = (0..16).map(|number| format!("consumer_{number}")).collect();
    for (number, consumer) in consumers.iter().enumerate() {
        let batch = if number % 2 == 0 { "" } else { ", batch = true" };
        let settings = format!("handler = {{ function = \"app.raising_all\"{batch} }}");
        world.consumer(consumer, &format!("{settings}\nretry = {{ delays = [\"50ms\"], max_attempts = 1 }}"));
        let first = fastrand::i64(1..20);
        let past = first + fastrand::i64(1..20);
        eprintln!("{consumer}: tries {first}..{past} fail");
        sqlx::query("insert into app.fault values ($1, $2, $3)")
            .bind(consumer)
            .bind(first)
            .bind(past)
            .execute(&mut world.sql)
            .await
            .unwrap();
        let sequence = format!("create sequence app.tries_of_{consumer}");
        world.sql.execute(sqlx::AssertSqlSafe(sequence)).await.unwrap();
    }
    world.apply_topology().await;
    for number in 0..40 {
        for consumer in &consumers {
            world.publish(consumer, message("acme", &format!("k{number}")), "{}").await;
        }
    }
    let worker = world.start("worker");
    world.wait_for("select count(*) from oncely.audit", 640).await;
    let charged = "select string_agg(a::text, E'\\n') from oncely.audit as a where outcome <> 'completed'";
    assert_eq!(world.text(charged).await, None);
    assert_eq!(world.count("select count(*) from app.effects where attempt = 1").await, 640);
    world.stop(worker).await;
}
