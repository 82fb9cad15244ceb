//! What the doctor says of a server whose settings, slots and transactions are its own: on a private PostgreSQL.

use std::time::Duration;

use oncely_doctor::{Limits, Verdict};
use testbed::{Postgres, Urls};

use super::{Case, case, go_through, only, run, says};
use crate::support::{World, servers};

async fn own() -> (Postgres, World) {
    let settings = ["max_prepared_transactions=5", "max_slot_wal_keep_size=1MB"];
    let postgres = Postgres::start(&settings).await.unwrap();
    let urls = Urls { postgres: postgres.url(), ..servers().await.urls().clone() };
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    (postgres, world)
}

const SLOTS: &[Case] = &[
    case(
        "select pg_create_physical_replication_slot('standby', true)",
        "pg.slots",
        Verdict::Info,
        "standby: is inactive and keeps",
        "",
    ),
    case(
        "select 1",
        "pg.durability",
        Verdict::Warning,
        "a standby may take over without the latest commits",
        "",
    ),
    case("select pg_drop_replication_slot('standby')", "pg.slots", Verdict::Ok, "", "select 1"),
];

#[tokio::test]
async fn settings_that_lose_commits_and_slots_that_fill_the_disk_are_told() {
    let (_postgres, mut world) = own().await;
    let default = Limits::default();
    go_through(&mut world, &SLOTS[..2], default).await;
    let mut trusting = world.config();
    let redis = "redis://127.0.0.1:1/";
    let text = format!("[redis]\nurl = {redis:?}\n[mirror]\nprecheck = \"trust\"");
    world.configure(&text);
    let trust = world.config();
    says(&trust, &only("pg.durability", default), "pg.durability", Verdict::Error, "precheck = \"trust\"")
        .await;
    trusting.consumers.clear();
    let greedy = Limits { slot_bytes: -1, ..default };
    says(&world.config(), &only("pg.slots", greedy), "pg.slots", Verdict::Warning, "it fills the disk").await;
    go_through(&mut world, &SLOTS[2..], default).await;
    // Its log goes, because nobody has fetched it.
    run(&mut world, "select pg_create_physical_replication_slot('lost', true)").await;
    for _ in 0..4 {
        run(&mut world, "select pg_logical_emit_message(false, 'test', repeat('x', 1000))").await;
        run(&mut world, "select pg_switch_wal()").await;
    }
    run(&mut world, "checkpoint").await;
    says(&world.config(), &only("pg.slots", default), "pg.slots", Verdict::Warning, "can't go on from it")
        .await;
    run(&mut world, "select pg_drop_replication_slot('lost')").await;
    for (setting, value, check, verdict, part) in [
        ("fsync", "off", "pg.durability", Verdict::Error, "fsync: is off"),
        ("full_page_writes", "off", "pg.durability", Verdict::Warning, "full_page_writes: is off"),
        ("autovacuum", "off", "pg.bloat", Verdict::Warning, "autovacuum: is off"),
        // Nothing is committed from here on.
        ("synchronous_standby_names", "nobody", "pg.durability", Verdict::Error, "none is connected"),
    ] {
        run(&mut world, &format!("alter system set {setting} = '{value}'")).await;
        run(&mut world, "select pg_reload_conf()").await;
        says(&world.config(), &only(check, default), check, verdict, part).await;
        run(&mut world, &format!("alter system reset {setting}")).await;
        run(&mut world, "select pg_reload_conf()").await;
        says(&world.config(), &only(check, default), check, Verdict::Ok, "").await;
    }
}

#[tokio::test]
async fn checkpoints_that_come_too_early_and_pages_written_whole_are_told() {
    let (_postgres, mut world) = own().await;
    let config = world.config();
    let default = only("pg.wal", Limits::default());
    let soon = only("pg.wal", Limits { requested_checkpoints: 3, wal_bytes: 1, ..Limits::default() });
    says(&config, &default, "pg.wal", Verdict::Ok, "").await;
    // After a checkpoint each page of the table is written whole.
    run(
        &mut world,
        "create table app.pages as select repeat('x', 500) as filler from generate_series(1, 2000)",
    )
    .await;
    for _ in 0..4 {
        run(&mut world, "checkpoint").await;
        run(&mut world, "update app.pages set filler = filler || 'x'").await;
    }
    says(&config, &soon, "pg.wal", Verdict::Warning, "max_wal_size: is 1.0 GiB").await;
    says(&config, &soon, "pg.wal", Verdict::Warning, "checkpoints were requested").await;
    says(&config, &soon, "pg.wal", Verdict::Warning, "wal_compression: is off, and up to").await;
    // Fewer than ten requests and less than 1 GiB are nothing to worry about.
    says(&config, &default, "pg.wal", Verdict::Ok, "").await;
}

#[tokio::test]
async fn transactions_that_hold_back_vacuum_are_named() {
    let (_postgres, mut world) = own().await;
    let config = world.config();
    let soon = Limits { transaction: Duration::ZERO, ..Limits::default() };
    says(&config, &only("pg.xmin", soon), "pg.xmin", Verdict::Ok, "").await;
    let mut report = world.database.connect().await.unwrap();
    let begin = "set application_name = 'report'; begin; select pg_current_xact_id()";
    sqlx::raw_sql(begin).execute(&mut report).await.unwrap();
    let who = "report: a transaction of \"report\" (login postgres, pid ";
    says(&config, &only("pg.xmin", soon), "pg.xmin", Verdict::Warning, who).await;
    // By the book's limit it is young.
    says(&config, &only("pg.xmin", Limits::default()), "pg.xmin", Verdict::Ok, "").await;
    sqlx::raw_sql("rollback").execute(&mut report).await.unwrap();
    run(&mut world, "begin; insert into app.numbers values ('1'); prepare transaction 'forgotten'").await;
    says(&config, &only("pg.xmin", soon), "pg.xmin", Verdict::Warning, "a prepared transaction").await;
    run(&mut world, "rollback prepared 'forgotten'").await;
    says(&config, &only("pg.xmin", soon), "pg.xmin", Verdict::Ok, "").await;
}
