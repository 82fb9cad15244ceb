//! A key of which nobody knows whether its request took effect: an operator sees it, and settles it.

use serde_json::Value;
use testbed::Process;

use super::health::health;
use super::{Reply, Site, with};
use crate::console;
use crate::support::http::{address, wait_for};
use crate::support::{Login, program};

/// Of the tenant `acme`.
async fn ask(site: &Site, path: &str, key: &str) -> Reply {
    let headers = format!("X-Tenant: acme\r\nIdempotency-Key: {key}\r\n");
    site.ask(&with(path, &headers, "{}")).await
}

/// Exit code, and all that was told.
async fn told(site: &Site, words: &str, more: &[(&str, &str)]) -> (i32, String) {
    // Where there are gateways alone there is no broker.
    let database = site.world.database.url();
    let mut command = tokio::process::Command::new(program("oncely"));
    command.args(words.split(' ')).env_clear();
    command.env("ONCELY_CONFIG", site.world.file()).env("DATABASE_URL", database).envs(more.iter().copied());
    let output = command.output().await.unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap(), text)
}

#[tokio::test]
async fn a_key_that_was_given_up_is_seen_and_settled_either_way() {
    let settings = "metrics = \"127.0.0.1:0\"\ntenant = { header = \"x-tenant\" }";
    let mut site = Site::start(settings).await;
    let health = health(&site.process).await;
    assert_eq!(ask(&site, "/do/torn,201", "torn").await.said(), (409, "outcome-unknown".to_owned()));
    assert_eq!(ask(&site, "/do/500,201", "failed").await.status, 500);
    assert_eq!(ask(&site, "/do/500,201", "failed").await.said(), (409, "outcome-unknown".to_owned()));
    wait_for(&health, "/metrics", 200, "oncely_gateway_unknown_keys{consumer=\"gateway\"} 2\n").await;
    // It is seen.
    let (_, listed) = told(&site, "keys list --consumer gateway --status failed --json", &[]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let keys: Vec<_> =
        listed["keys"].as_array().unwrap().iter().map(|key| (&key["key"], &key["reason"])).collect();
    assert_eq!(
        format!("{keys:?}"),
        r#"[(String("failed"), String("outcome_unknown")), (String("torn"), String("outcome_unknown"))]"#
    );
    let (code, explained) = told(&site, "explain failed", &[]).await;
    assert_eq!(code, 0, "{explained}");
    for part in ["it may have taken effect", "oncely keys settle", "request: started", "answered with 500"] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    // No message stands behind it, so there is nothing to requeue.
    let (code, letters) = told(&site, "failed list --key torn", &[]).await;
    assert_eq!(code, 1, "{letters}");
    let requeue = ["failed", "requeue", "--key", "torn", "--repeat-unknown", "--yes"];
    let requeued = site.world.oncely(&requeue).await;
    assert_eq!(requeued.status.code(), Some(1), "{requeued:?}");
    let (code, shown) = told(&site, "keys show torn", &[]).await;
    assert!(code == 0 && shown.contains("outcome_unknown"), "{shown}");
    let (code, collected) = told(&site, "gc run --dry-run", &[]).await;
    assert_eq!(code, 0, "{collected}");
    // Nothing is changed by a look, without consent, by somebody who may not, or for a key that is not known.
    let worker = Login::create(&mut site.world, "oncely_worker").await;
    for (words, code, part, url) in [
        ("keys settle torn --took-effect no --dry-run", 0, "if it did take effect, it does so again", None),
        ("keys settle torn --took-effect no", 4, "confirm with --yes", None),
        ("keys settle torn --took-effect no --yes", 4, "insufficient privilege", Some(&worker.url)),
        ("keys settle other --took-effect no --yes", 1, "other is not known", None),
        ("keys settle torn --yes", 2, "--took-effect", None),
    ] {
        let more = url.map(|url| ("DATABASE_URL", url.as_str()));
        let (found, text) = told(&site, words, more.as_slice()).await;
        assert_eq!(found, code, "{words}: {text}");
        assert!(text.contains(part), "{words}: {text}");
    }
    let open = "select count(*) from oncely.idempotency_keys where reason = 'outcome_unknown'";
    assert_eq!(site.world.count(open).await, 2);
    // It did not happen: the client's retry is sent on.
    let operator = Login::create(&mut site.world, "oncely_operator").await;
    let as_operator = [("DATABASE_URL", operator.url.as_str()), ("USER", "ana"), ("SUDO_USER", "ana")];
    let no = "keys settle torn --consumer gateway --tenant acme --took-effect no --yes";
    let (code, text) = told(&site, no, &as_operator).await;
    assert_eq!(code, 0, "{text}");
    let again = ask(&site, "/do/torn,201", "torn").await;
    assert_eq!((again.status, again.is_replayed()), (201, false), "{again:?}");
    assert!(ask(&site, "/do/torn,201", "torn").await.is_replayed());
    // It did, and nobody knows with which answer.
    let yes = "keys settle failed --took-effect yes --yes --json --note found";
    let (code, text) = told(&site, yes, &as_operator).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("\"oncely.key_settlement/1\"") && text.contains("\"settled\""), "{text}");
    let again = ask(&site, "/do/500,201", "failed").await;
    assert_eq!((again.status, again.is_replayed()), (204, true), "{again:?}");
    assert_eq!(site.upstream.calls_of("/do/500,201").len(), 1);
    // Once.
    for words in [no, yes] {
        let (code, text) = told(&site, words, &as_operator).await;
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("nothing to settle"), "{text}");
    }
    let said = "select string_agg(concat_ws(' ', actor, filter->>'key', filter->>'took_effect', reason), ', ' order by occurred_at)
        from oncely.operator_actions where verb = 'settle_claim'";
    let wanted = format!("{0} (ana) torn false, {0} (ana) failed true found", operator.name);
    assert_eq!(site.world.text(said).await, Some(wanted));
    let trail = "select count(*) from oncely.audit where key = 'failed' and outcome = 'completed' and detail = 'settled by hand'";
    assert_eq!(site.world.count(trail).await, 1);
    wait_for(&health, "/metrics", 200, "oncely_gateway_unknown_keys{consumer=\"gateway\"} 0\n").await;
    // Where no relay runs, nobody takes what is for the mirror, and it would keep all younger keys.
    assert_eq!(site.world.count("select count(*) from oncely.mirror_queue").await, 0);
    worker.drop_now(&mut site.world).await;
    operator.drop_now(&mut site.world).await;
    site.stop().await;
}

#[tokio::test]
async fn where_there_are_gateways_alone_status_top_and_console_are_there() {
    let mut site = Site::start("").await;
    site.world.wait_for("select count(*) from oncely.processes where state = 'ready'", 1).await;
    let (code, status) = told(&site, "status", &[]).await;
    assert_eq!(code, 0, "{status}");
    for part in ["✓ no findings", "RabbitMQ    not configured", "gateway  gateway"] {
        assert!(status.contains(part), "no {part:?} in\n{status}");
    }
    let (code, top) = told(&site, "top --once", &[]).await;
    assert!(code == 0 && top.contains("1 gateway") && !top.contains("RabbitMQ"), "{top}");
    let (code, retention) = told(&site, "retention list", &[]).await;
    assert!(code != 78 && !retention.contains("rabbitmq"), "{retention}");
    let (file, log) =
        (site.world.file().display().to_string(), site.world.file().with_file_name("console.log"));
    let program = program("oncely").display().to_string();
    let verb = ["-u", "AMQP_URL", "-u", "REDIS_URL", &program, "console", "--listen", "127.0.0.1:0"];
    let environment = [("ONCELY_CONFIG", file.as_str()), ("DATABASE_URL", site.world.database.url())];
    let process = Process::start("/usr/bin/env".as_ref(), &verb, &environment, &log).unwrap();
    let stranger = console::Client::new(&address(&process).await);
    let running = console::Running { process, stranger };
    let operator = running.operator().await;
    for path in ["/", "/keys", "/doctor"] {
        let page = operator.page(path).await;
        assert!(!page.body.contains("RabbitMQ does not answer"), "{path}: {}", page.body);
    }
    // A consumer needs one.
    site.world.consumer("payments", "");
    let (code, status) = told(&site, "status", &[]).await;
    assert!(code == 78 && status.contains("rabbitmq.url"), "{status}");
}
