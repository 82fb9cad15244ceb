//! `oncely doctor` as a person or a script uses it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use oncely_doctor::{CHECKS, Limits, Verdict};
use serde_json::Value;

use super::{of, only, says};
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
    let scope = oncely_doctor::CheckSelection::default();
    let report = match config {
        Some(config) => oncely_doctor::examine(&config, &problems, &scope).await,
        None => oncely_doctor::report_problems(&problems, &scope),
    };
    for (check, verdict) in [("config", Verdict::Error), ("mq.reach", Verdict::Skipped)] {
        assert_eq!(of(&report, check).verdict, verdict, "{report:#?}");
    }
}

#[tokio::test]
async fn a_file_with_a_url_that_everybody_may_read_is_told_and_a_worker_warns_of_it_once() {
    let world = world().await;
    let folder = testbed::Scratch::new("secrets").unwrap();
    let file = folder.path().join("database-url");
    std::fs::write(&file, world.database.url()).unwrap();
    let mut config = world.config();
    config.postgres.url_file = Some(file.clone());
    let mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let scope = only("config.files", Limits::default());
    mode(folder.path(), 0o755);
    for (of_file, of_folder, verdict) in
        [(0o644, 0o755, Verdict::Warning), (0o600, 0o755, Verdict::Ok), (0o644, 0o700, Verdict::Ok)]
    {
        mode(&file, of_file);
        mode(folder.path(), of_folder);
        let part = if verdict == Verdict::Ok { "" } else { "postgres.url_file: " };
        says(&config, &scope, "config.files", verdict, part).await;
    }
    mode(folder.path(), 0o755);
    says(&config, &scope, "config.files", Verdict::Warning, "(mode 0644): `chmod o= ").await;

    let environment = [("DATABASE_URL_FILE", file.display().to_string())];
    let worker = world.start_with("worker", "worker", &environment);
    world.wait_for_line(&worker, "subscribed").await;
    let log = world.stopped_log(worker).await;
    assert_eq!(log.matches("may be read by everybody on this machine").count(), 1, "{log}");
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
