//! `oncely doctor` as a person or a script uses it.

use oncely::doctor::{CHECKS, Verdict};
use serde_json::Value;

use super::of;
use crate::command_line::stdout;
use crate::rights::state;
use crate::support::World;

async fn world() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

#[tokio::test]
async fn the_exit_code_says_how_bad_it_is() {
    let mut world = world().await;
    for (arguments, code) in [
        (&["doctor", "--only", "config,pg.schema,mq.queue"][..], 0),
        // A superuser.
        (&["doctor", "--only", "pg.powers"], 1),
        (&["doctor", "--only", "pg.powers,live"], 1),
        (&["doctor", "--only", "nothing"], 2),
        (&["doctor", "--list"], 0),
    ] {
        let output = world.oncely(arguments).await;
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stdout(&output));
    }
    world.broker.delete_queue(&format!("{}.dead", world.queue("payments"))).await.unwrap();
    let output = world.oncely(&["doctor"]).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.starts_with("✗ mq.dlq: The dead-letter queues\n"), "{text}");
    assert!(text.contains("fix: run `oncely topology apply`") && text.contains("doctor.md#mqdlq"), "{text}");
    world.configure("[relay]\nbacth = 1");
    let text = stdout(&world.oncely(&["doctor"]).await);
    assert!(text.contains("relay.bacth: unknown key; did you mean batch?"), "{text}");
    let away = [("AMQP_URL", "amqp://someone:S3CR3T@127.0.0.1:1/%2f")];
    let output = world.oncely_with(&["doctor", "-v"], &away).await;
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("– mq.queue: The work queues") && !text.contains("S3CR3T"), "{text}");
    let none = world.oncely(&["--config", "/nowhere/oncely.toml", "doctor"]).await;
    assert_eq!(none.status.code(), Some(5));
    assert!(stdout(&none).contains("✗ config: The configuration"), "{}", stdout(&none));
}

#[tokio::test]
async fn a_section_with_problems_is_told_and_its_server_is_not_asked() {
    let mut world = world().await;
    world.configure("[rabbitmq]\ntimeout = \"soon\"");
    let (config, problems) = oncely::Config::examine(&world.file());
    let scope = oncely::doctor::Scope::default();
    let report = match config {
        Some(config) => oncely::doctor::examine(&config, &problems, &scope).await,
        None => oncely::doctor::unusable(&problems, &scope),
    };
    for (check, verdict) in [("config", Verdict::Error), ("mq.reach", Verdict::Skipped)] {
        assert_eq!(of(&report, check).verdict, verdict, "{report:#?}");
    }
}

#[tokio::test]
async fn json_has_every_check_with_what_it_read_and_where_the_book_says_more() {
    let world = world().await;
    let output = world.oncely(&["doctor", "--json"]).await;
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (object["schema"].as_str(), object["role"].as_str()),
        (Some("oncely.doctor/1"), Some("worker"))
    );
    assert_eq!(object["exit"].as_i64(), output.status.code().map(i64::from));
    let checks = object["checks"].as_array().unwrap();
    let ids: Vec<&str> = checks.iter().map(|check| check["id"].as_str().unwrap()).collect();
    assert_eq!(ids, CHECKS.iter().map(|check| check.id).collect::<Vec<_>>());
    for check in checks {
        for field in ["title", "reads", "bad", "fix", "page", "verdict"] {
            assert!(check[field].is_string(), "{check}");
        }
        let (read, findings) = (check["read"].as_array().unwrap(), check["findings"].as_array().unwrap());
        assert!(!read.is_empty() || findings[0]["verdict"] == "skipped", "{check}");
    }
}

#[tokio::test]
async fn looking_changes_nothing_in_the_database() {
    let mut world = world().await;
    let before = state(&mut world).await;
    assert_eq!(world.oncely(&["doctor"]).await.status.code(), Some(1));
    assert_eq!(state(&mut world).await, before);
}
