//! RabbitMQ's users and Redis' as the book makes them: enough for the work, and for nothing else.

use std::path::Path;
use std::process::{Command, Stdio};

use lapin::options::{BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, ConnectionProperties, ExchangeKind};
use testbed::{RabbitMq, Redis, Scratch};
use url::Url;

use super::run;
use crate::support::{Login, World, message, servers};

const CONSUMER: &str = r#"
[audit]
duplicates = true
[relay]
poll = "20ms"
[[consumers]]
name = "payments"
queue = "payments"
tenant = { header = "x-tenant-id" }
key = { property = "message_id" }
handler = { function = "app.handle" }
retry = { delays = ["100ms"], max_attempts = 2 }
"#;

/// Servers of a test's own, with the users that `examples/rights` makes there.
struct Site {
    world: World,
    // After the world, which has a connection to it.
    broker: RabbitMq,
    redis: Redis,
}

impl Site {
    async fn open() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rights");
        let (broker, redis) = tokio::join!(RabbitMq::start(), async {
            let file = folder.join("redis.acl");
            Redis::start_with(&["--aclfile", &file.display().to_string()]).await
        });
        let (broker, redis) = (broker.unwrap(), redis.unwrap());
        let scratch = Scratch::new("rights").unwrap();
        broker.ctl_script(scratch.path()).unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let path = std::iter::once(scratch.path().to_owned()).chain(std::env::split_paths(&path));
        let mut script = Command::new("bash");
        script
            .arg(folder.join("rabbitmq.sh"))
            .env("PATH", std::env::join_paths(path).unwrap())
            .stdin(Stdio::null());
        for who in ["topology", "worker", "relay", "operator"] {
            script.env(format!("{}_PASSWORD", who.to_uppercase()), format!("{who}-secret"));
        }
        let made = tokio::task::spawn_blocking(move || script.output().unwrap()).await.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut urls = servers().await.urls().clone();
        urls.rabbitmq = broker.url();
        let mut world = World::on(urls).await;
        world.with_redis(&redis.url(), "precheck = \"trust\"");
        world.configure(CONSUMER);
        Self { world, broker, redis }
    }

    /// Where this user finds RabbitMQ.
    fn rabbitmq(&self, who: &str) -> String {
        as_user(&self.broker.url(), who)
    }

    /// The environment of a process of this user: of PostgreSQL, RabbitMQ and Redis.
    fn environment(&self, who: &str, login: &Login) -> Vec<(&'static str, String)> {
        vec![
            ("DATABASE_URL", login.url.clone()),
            ("AMQP_URL", self.rabbitmq(who)),
            ("ONCELY_REDIS__URL", as_user(&self.redis.url(), who)),
        ]
    }

    async fn oncely(&self, arguments: &[&str], environment: &[(&str, String)]) -> String {
        let environment: Vec<(&str, &str)> =
            environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let output = self.world.oncely_with(arguments, &environment).await;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    }
}

fn as_user(url: &str, who: &str) -> String {
    let mut url: Url = url.parse().unwrap();
    url.set_username(&format!("oncely_{who}")).unwrap();
    url.set_password(Some(&format!("{who}-secret"))).unwrap();
    url.to_string()
}

/// What RabbitMQ answers where a user tries something: its reply code.
async fn tried<T>(
    connection: &lapin::Connection,
    what: impl AsyncFnOnce(&lapin::Channel) -> lapin::Result<T>,
) -> Option<u16> {
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    match what(&channel).await.err()?.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_books_users_of_rabbitmq_and_redis_can_do_all_the_work() {
    let mut site = Site::open().await;
    site.oncely(&["topology", "apply"], &[("AMQP_URL", site.rabbitmq("topology"))]).await;
    // Events go to an exchange of the application's.
    site.world.broker.declare_exchange("orders", ExchangeKind::Fanout).await.unwrap();
    site.world.broker.declare_queue("accounting", FieldTable::default()).await.unwrap();
    site.world.broker.bind("accounting", "orders", "").await.unwrap();
    let mut logins = Vec::new();
    for role in ["oncely_worker", "oncely_relay", "oncely_operator"] {
        logins.push(Login::create(&mut site.world, role).await);
    }
    let [as_worker, as_relay, as_operator] = &logins[..] else { panic!("three roles") };
    run(
        &mut site.world,
        &format!("grant usage on schema app to {0}; grant insert on app.effects to {0}", as_worker.name),
    )
    .await;
    let worker = site.world.start_with("worker", "worker", &site.environment("worker", as_worker));
    let relay = site.world.start_with("relay", "relay", &site.environment("relay", as_relay));

    let publish = async |world: &World, key: &str, body: &str| {
        world.broker.publish("", "payments", message("acme", key), body.as_bytes()).await.unwrap();
    };
    publish(&site.world, "fresh", "{}").await;
    publish(&site.world, "again", r#"{"do": "fail_once"}"#).await;
    // Two that fail wait for a success of another one.
    site.world.wait_for("select count(*) from app.effects", 2).await;
    publish(&site.world, "never", r#"{"do": "fail"}"#).await;
    run(&mut site.world, "select oncely.emit('orders', 'order.created', 'order 1182')").await;
    site.world.wait_for("select count(*) from oncely.dead_letters where state = 'waiting'", 1).await;
    site.world.wait_for_ready("accounting", 1).await;
    site.world.wait_for("select count(*) from oncely.events", 0).await;
    // What took effect is in Redis, and Redis alone answers for a duplicate.
    site.world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    publish(&site.world, "fresh", "{}").await;
    let known = "select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror'";
    site.world.wait_for(known, 1).await;

    let operator = site.environment("operator", as_operator);
    let doctor = site.oncely(&["check", "--as", "operator"], &operator).await;
    assert!(!doctor.contains("NOPERM") && !doctor.contains("refused"), "{doctor}");
    let said = site.oncely(&["failed", "requeue", "--key", "never", "--yes"], &operator).await;
    let again = "select count(*) from oncely.dead_letters where generation = 2 and state = 'waiting'";
    site.world.wait_for(again, 1).await;
    // One copy leaves, the other one stays: published again, through the default exchange.
    let swept = site.oncely(&["failed", "sweep"], &operator).await;
    site.world.wait_for_ready("payments.dead", 1).await;
    let (worker, relay) = (site.world.stopped_log(worker).await, site.world.stopped_log(relay).await);
    let eraser = [
        ("DATABASE_URL", site.world.database.url().to_owned()),
        ("AMQP_URL", site.rabbitmq("operator")),
        ("ONCELY_REDIS__URL", as_user(&site.redis.url(), "eraser")),
    ];
    let erased = site.oncely(&["tenant", "erase", "acme", "--forget-keys", "--yes"], &eraser).await;
    assert_eq!(site.world.count("select count(*) from oncely.idempotency_keys").await, 0);
    for log in [worker, relay, said, swept, erased] {
        for refused in ["NOPERM", "ACCESS_REFUSED", "ACCESS-REFUSED"] {
            assert!(!log.contains(refused), "{log}");
        }
    }
    for login in logins {
        login.drop_now(&mut site.world).await;
    }
}

#[tokio::test]
async fn the_books_users_of_rabbitmq_and_redis_can_do_nothing_else() {
    let site = Site::open().await;
    site.oncely(&["topology", "apply"], &[("AMQP_URL", site.rabbitmq("topology"))]).await;
    site.world.broker.declare_queue("others", FieldTable::default()).await.unwrap();
    for (who, reads, writes) in [
        (
            "topology",
            vec!["payments", "payments.dead"],
            vec!["payments.dlx", "payments.retry", "payments.return"],
        ),
        ("worker", vec!["payments"], vec!["payments.dlx", "payments.retry", "payments.return"]),
        ("relay", vec![], vec![]),
        ("operator", vec!["payments.dead"], vec!["", "payments.return"]),
    ] {
        let properties = ConnectionProperties::default();
        let connection = lapin::Connection::connect(&site.rabbitmq(who), properties).await.unwrap();
        for queue in ["others", "payments", "payments.dead", "payments.retry.100ms"] {
            let read = tried(&connection, async |channel| {
                let options = BasicConsumeOptions::default();
                channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await
            });
            let may = reads.contains(&queue) || (who == "topology" && queue != "others");
            assert_eq!(read.await, (!may).then_some(403), "{who} reads {queue}");
        }
        for exchange in ["", "amq.topic", "payments.dlx", "payments.retry", "payments.return"] {
            let written = tried(&connection, async |channel| {
                let options = BasicPublishOptions::default();
                let properties = BasicProperties::default();
                let confirm =
                    channel.basic_publish(exchange.into(), "nobody".into(), options, b"", properties).await?;
                confirm.await
            });
            assert_eq!(
                written.await,
                (!writes.contains(&exchange)).then_some(403),
                "{who} writes {exchange}"
            );
        }
        for queue in ["others", "mine"] {
            let declared = tried(&connection, async |channel| {
                let options = QueueDeclareOptions::durable();
                channel.queue_declare(queue.into(), options, FieldTable::default()).await
            });
            assert_eq!(declared.await, Some(403), "{who} declares {queue}");
        }
        connection.close(200, "done".into()).await.unwrap();
    }
    // The key of a bucket, another key, and what is everybody's.
    let own = "oncely:2:1:1:1:0";
    let attempts: [&[&str]; 11] = [
        &["HGET", own, "field"],
        &["HSET", own, "field", "value"],
        &["PEXPIRE", own, "1000"],
        &["HSET", "others", "field", "value"],
        &["HGET", "others", "field"],
        &["DEL", own],
        &["KEYS", "*"],
        &["CONFIG", "GET", "*"],
        &["FLUSHALL"],
        &["HDEL", own, "field"],
        &["HDEL", "others", "field"],
    ];
    for (who, may) in [("worker", &[0][..]), ("relay", &[1, 2]), ("operator", &[0]), ("eraser", &[9])] {
        let client = redis::Client::open(as_user(&site.redis.url(), who)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        for (number, words) in attempts.iter().enumerate() {
            let mut command = redis::Cmd::new();
            command.arg(*words);
            let done = command.query_async::<redis::Value>(&mut connection).await;
            let refused = done.err().map(|error| error.code().map(str::to_owned));
            let expected = (!may.contains(&number)).then(|| Some("NOPERM".to_owned()));
            assert_eq!(refused, expected, "{who}: {words:?}");
        }
    }
}
