//! Dead letters: their rows in PostgreSQL, and what an operator does to them.

mod at_once;
mod changes;
mod letters;
mod marks;
mod memory;
mod park;
mod quota;
mod requeue;
mod sweep;

use serde_json::Value;

use crate::support::World;

/// A handler that fails for every kind that is listed in `app.faults`, each in its own words.
const FRAGILE: &str = r"
create table app.faults (kind text);
create function app.fragile(message oncely.message) returns jsonb language plpgsql as $$
begin
    if exists (select from app.faults where kind = message.payload ->> 'kind') then
        perform oncely.reject(format('kind %s is broken at order ''%s''', message.payload ->> 'kind', message.key));
    end if;
    return app.handle(message);
end
$$";

const SETTINGS: &str =
    "handler = { function = \"app.fragile\" }\nretry = { delays = [\"100ms\"], max_attempts = 1 }";

/// A world with a consumer `payments` of [`FRAGILE`] and its queues.
async fn fragile(kinds: &[&str], more: &str) -> World {
    let mut world = World::new().await;
    sqlx::raw_sql(FRAGILE).execute(&mut world.sql).await.unwrap();
    for kind in kinds {
        sqlx::query("insert into app.faults values ($1)").bind(kind).execute(&mut world.sql).await.unwrap();
    }
    world.consumer("payments", &format!("{SETTINGS}\n{more}"));
    world.apply_topology().await;
    world
}

async fn mend(world: &mut World) {
    sqlx::query("delete from app.faults").execute(&mut world.sql).await.unwrap();
}

fn kind(kind: &str) -> String {
    format!("{{\"kind\": {kind:?}}}")
}

fn dead(world: &World) -> String {
    format!("{}.dead", world.queue("payments"))
}

/// Runs `oncely failed … --json`, which must exit with `code`.
async fn failed(world: &World, code: i32, arguments: &[&str]) -> Value {
    let mut all = vec!["failed"];
    all.extend(arguments);
    all.push("--json");
    let output = world.oncely(&all).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if !object.is_null() {
        assert_eq!(object["schema"], "oncely.failed/1");
    }
    object
}

async fn requeue_all(world: &World) -> Value {
    failed(world, 0, &["requeue", "--all", "--yes"]).await
}

const WAITING: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";
