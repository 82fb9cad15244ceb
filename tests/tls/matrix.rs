//! What becomes of each kind of distrust at each server.

use std::collections::BTreeMap;

use testbed::Credentials;

use crate::recorder::{Recorder, is_guarded};
use crate::servers::{Files, HOST, Ports, Servers, authority, port, urls};
use crate::support::program;

const CONSUMER: &str = "[[consumers]]\nname = \"payments\"\nqueue = \"payments\"\ntenant = { header = \"x-tenant-id\" }\n\
     key = { property = \"message_id\" }\nhandler = { function = \"app.handle\" }\n";
const CHECKS: [&str; 3] = ["pg.tls", "mq.tls", "redis.tls"];

/// What the programs say of each server: a kind of fault, or nothing.
type Said = BTreeMap<String, String>;

/// Runs `oncely`, and returns what it prints.
async fn oncely(arguments: &[&str], files: &Files, environment: &[(&str, String)]) -> serde_json::Value {
    let configuration = files.path("oncely.toml");
    std::fs::write(&configuration, CONSUMER).unwrap();
    let mut command = tokio::process::Command::new(program("oncely"));
    command.args(arguments).env("ONCELY_CONFIG", &configuration);
    for variable in ["DATABASE_URL", "AMQP_URL", "REDIS_URL"] {
        command.env_remove(variable);
    }
    let output = command.envs(environment.iter().map(|(name, value)| (*name, value))).output().await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(!told.contains(crate::servers::PASSWORD), "{told}");
    serde_json::from_str(&told)
        .unwrap_or_else(|_| panic!("{told}{}", String::from_utf8_lossy(&output.stderr)))
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What `oncely check --json` says of each server.
async fn check(files: &Files, environment: &[(&str, String)]) -> Said {
    let told = oncely(&["check", "--json", "--as", "worker"], files, environment).await;
    let mut said: Said = CHECKS.map(|check| (check.to_owned(), "trusted".to_owned())).into();
    for problem in told["problems"].as_array().unwrap() {
        let check = text(&problem["check"]);
        if CHECKS.contains(&check.as_str()) {
            said.insert(check, text(&problem["kind"]));
        }
    }
    assert!(told["unreachable"].as_array().unwrap().is_empty(), "{told}");
    said
}

/// What `oncely doctor --json` says of the HTTP API.
async fn management(files: &Files, environment: &[(&str, String)]) -> String {
    let told = oncely(&["doctor", "--json", "--only", "mq"], files, environment).await;
    let checks = told["checks"].as_array().unwrap();
    let of = |id: &str| checks.iter().find(|check| check["id"] == id).unwrap();
    let found =
        of("mq.tls")["findings"].as_array().unwrap().iter().find(|finding| !finding["kind"].is_null());
    match found {
        Some(finding) => text(&finding["kind"]),
        None => {
            let read = of("mq.version")["read"].to_string();
            assert!(read.contains("RabbitMQ"), "{told}");
            "trusted".to_owned()
        }
    }
}

/// What `oncely check` says of PostgreSQL, RabbitMQ and Redis where the settings give the last two a name.
async fn named(servers: &Servers, files: &Files, name: Option<&str>) -> [String; 3] {
    let mut environment = files.environment();
    environment.extend(urls(servers.ports, "postgres"));
    for variable in ["ONCELY_RABBITMQ__TLS__SERVER_NAME", "ONCELY_REDIS__TLS__SERVER_NAME"] {
        environment.extend(name.map(|name| (variable, name.to_owned())));
    }
    let said = check(files, &environment).await;
    CHECKS.map(|check| said[check].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_verified_by_the_name_that_the_settings_give_it_and_by_no_other() {
    let (ours, right) = authority("ours");
    let mut servers = Servers::start(&ours.issue("server", &["server.internal"]).unwrap()).await;
    let files = Files::new(&ours.issue("app", &[]).unwrap());
    // PostgreSQL's driver knows the host of the URL alone.
    assert_eq!(named(&servers, &files, None).await, ["wrong_name"; 3]);
    assert_eq!(named(&servers, &files, Some("server.internal")).await, ["wrong_name", "trusted", "trusted"]);
    assert_eq!(named(&servers, &files, Some("server.elsewhere")).await, ["wrong_name"; 3]);
    // It stands for the host, and not beside it.
    servers.present(&right).await;
    assert_eq!(
        named(&servers, &files, Some("server.internal")).await,
        ["trusted", "wrong_name", "wrong_name"]
    );
}

/// A way to ask, and what must come of it.
struct Case<'a> {
    name: &'a str,
    server: &'a Credentials,
    client: &'a Credentials,
    with_certificate: bool,
    plaintext: bool,
    expected: &'a str,
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_distrust_is_told_by_its_name_and_nothing_is_sent_to_a_server_that_is_not_trusted() {
    let (ours, right) = authority("ours");
    let (strangers, stranger) = authority("strangers");
    let of = |server: Credentials| Credentials { ca: right.ca.clone(), ..server };
    let (stranger, expired) = (of(stranger), of(ours.issue_expired("server", &[HOST]).unwrap()));
    let elsewhere = of(ours.issue("server", &["elsewhere.example"]).unwrap());
    let client = ours.issue("app", &[]).unwrap();
    let foreign = Credentials { ca: right.ca.clone(), ..strangers.issue("app", &[]).unwrap() };

    let mut servers = Servers::start(&right).await;
    let mut table =
        vec![format!("{:28}{:28}{:28}{:28}{}", "", "PostgreSQL", "RabbitMQ", "RabbitMQ's HTTP API", "Redis")];
    let case = |name, server, client, expected| Case {
        name,
        server,
        client,
        with_certificate: true,
        plaintext: false,
        expected,
    };
    let cases = [
        case("right", &right, &client, "trusted"),
        case("wrong CA", &stranger, &client, "unknown_ca"),
        case("wrong name", &elsewhere, &client, "wrong_name"),
        case("expired", &expired, &client, "expired"),
        Case {
            with_certificate: false,
            ..case("no client certificate", &right, &client, "client_certificate_missing")
        },
        case("foreign client certificate", &right, &foreign, "client_certificate_refused"),
        Case { plaintext: true, ..case("plaintext server", &right, &client, "not_tls") },
    ];
    let mut wrong = Vec::new();
    for Case { name, server, client, with_certificate, plaintext, expected } in cases {
        servers.encrypt(!plaintext).await;
        servers.present(server).await;
        let ports = match plaintext {
            false => servers.ports,
            true => Ports {
                postgres: servers.ports.postgres,
                rabbitmq: port(&servers.rabbitmq.url()),
                management: port(&servers.rabbitmq.management_url().unwrap()),
                redis: port(&servers.redis.url()),
            },
        };
        let recorders = [
            Recorder::start(ports.postgres).await,
            Recorder::start(ports.rabbitmq).await,
            Recorder::start(ports.management).await,
            Recorder::start(ports.redis).await,
        ];
        let [postgres, rabbitmq, api, redis] = recorders.each_ref().map(|recorder| recorder.port);
        let files = Files::new(client);
        let mut environment = files.environment();
        environment.retain(|(variable, _)| with_certificate || variable.ends_with("__CA"));
        environment.extend(urls(Ports { postgres, rabbitmq, management: api, redis }, "postgres"));
        let said = check(&files, &environment).await;
        // The HTTP API is asked where the broker answers: on this machine it does in plaintext.
        environment.push(("AMQP_URL", servers.rabbitmq.url()));
        environment.push(("ONCELY_RABBITMQ__MANAGEMENT", format!("https://guest:guest@localhost:{api}")));
        let of_api = self::management(&files, &environment).await;
        let row = [&said["pg.tls"], &said["mq.tls"], &of_api, &said["redis.tls"]];
        table.push(format!("{name:28}{:28}{:28}{:28}{}", row[0], row[1], row[2], row[3]));
        if row.iter().any(|found| found.as_str() != expected) {
            wrong.push(format!("{name}: {row:?}"));
        }
        let is_distrusted = ["unknown_ca", "wrong_name", "expired", "not_tls"].contains(&expected);
        for recorder in &recorders {
            let sent = recorder.sent();
            assert!(!sent.is_empty(), "{name}: nobody came");
            for bytes in sent {
                assert!(
                    !is_distrusted || is_guarded(&bytes),
                    "{name}: {:?}",
                    String::from_utf8_lossy(&bytes)
                );
            }
        }
    }
    let table = table.join("\n");
    eprintln!("{table}");
    assert!(wrong.is_empty(), "{wrong:#?}\n{table}");
}

#[tokio::test]
async fn a_redis_that_hangs_is_told_from_one_without_tls() {
    let (ours, _) = authority("ours");
    let files = Files::new(&ours.issue("app", &[]).unwrap());
    let hangs = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let redis = hangs.local_addr().unwrap().port();
    let nobody = testbed::free_port().unwrap();
    let mut environment = files.environment();
    environment.extend(urls(Ports { postgres: nobody, rabbitmq: nobody, management: nobody, redis }, "none"));
    let told = oncely(&["doctor", "--json", "--only", "redis"], &files, &environment).await;
    let checks = told["checks"].as_array().unwrap();
    let of_tls = checks.iter().find(|check| check["id"] == "redis.tls").unwrap();
    assert_eq!(of_tls["findings"][0]["kind"], "silent", "{told}");
}
