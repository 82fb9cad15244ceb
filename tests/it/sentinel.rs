//! Redis by Sentinel: the master of now is used, whichever it is.

use oncely::config::Config;
use redis::aio::MultiplexedConnection;
use testbed::{Redis, SentinelRedis};

use crate::command_line::stdout;
use crate::support::{World, message};

fn refused(redis: &str) -> String {
    let text = format!(
        "[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[redis]\n{redis}\n"
    );
    Config::parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn what_is_no_master_with_its_sentinels_is_refused() {
    for good in [
        "url = \"redis://u:p@mymaster/1\"\nsentinels = [\"redis://:q@127.0.0.1:1\", \"redis://localhost/\"]\nallow_plaintext = true",
        "url = \"redis://mymaster\"\nsentinels = \"redis://s-1:26379 redis://s-2:26379\"\nallow_plaintext = true",
    ] {
        assert_eq!(refused(good), "", "{good}");
    }
    let file = "url = \"redis://mymaster\"\nallow_plaintext = true\nsentinels_file = \"/S3/none\"";
    for (bad, what) in [
        (
            "sentinels = [\"redis://localhost\"]",
            "redis.url: is missing; set it (like redis://:password@mymaster/0)",
        ),
        ("url = \"redis://mymaster\"\nsentinels = []", "redis.sentinels: is missing"),
        (
            "url = \"redis://m\"\nsentinels = [\"redis://a\", \"S3CR3T\"]",
            "redis.sentinels[1]: is not a URL like",
        ),
        ("url = \"redis://m\"\nsentinels = [\"amqp://S3CR3T@a\"]", "redis.sentinels: is not a URL like"),
        // Both at once.
        ("url = \"redis://:S3CR3T@m:6379\"\nsentinels = [\"redis://s\"]", "redis.url: has a port"),
        (
            "url = \"redis://:S3CR3T@m:6379\"\nsentinels = [\"redis://s\"]",
            "redis.url: goes to the master m in plaintext",
        ),
        (
            "url = \"redis://localhost\"\nsentinels = [\"redis://localhost\"]",
            "redis.url: goes to the master localhost in plaintext",
        ),
        (
            "url = \"redis://m\"\nsentinels = [\"redis://:S3CR3T@far\"]",
            "redis.sentinels: goes to far in plaintext",
        ),
        (
            "url = \"redis://m\"\nsentinels = [\"redis://:S3CR3T@localhost/2\"]",
            "redis.sentinels: has a database",
        ),
        (file, "redis.sentinels_file: /S3/none: can't be read"),
        (
            &format!("{file}\nsentinels = [\"redis://s\"]"),
            "leave out sentinels or sentinels_file (ONCELY_REDIS__SENTINELS or",
        ),
    ] {
        let told = refused(bad);
        assert!(told.contains(what), "{bad}: {told}");
        assert!(!told.contains("CR3T"), "{bad}: {told}");
    }
}

async fn connect(redis: &Redis) -> MultiplexedConnection {
    redis::Client::open(redis.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
}

async fn keys(redis: &Redis) -> u64 {
    redis::cmd("DBSIZE").query_async(&mut connect(redis).await).await.unwrap()
}

/// With the users of `examples/rights`.
async fn servers() -> SentinelRedis {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rights/redis.acl");
    SentinelRedis::start(&["--aclfile", file]).await.unwrap()
}

/// A world whose Redis is what the Sentinels name.
async fn world(redis: &SentinelRedis) -> World {
    let mut world = World::new().await;
    world.configure(&format!(
        "[redis]\nurl = \"redis://mymaster\"\nsentinels = {:?}\nallow_plaintext = true\n[mirror]\nbudget = \"5s\"\nprecheck = \"trust\"\n\
         [audit]\nduplicates = true\n[relay]\npoll = \"20ms\"",
        redis.sentinel_urls()
    ));
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

fn login(who: &str) -> [(&'static str, String); 1] {
    [("ONCELY_REDIS__URL", format!("redis://oncely_{who}:{who}-secret@mymaster"))]
}

async fn told(world: &World, arguments: &[&str]) -> (i32, String) {
    let [(name, url)] = login("operator");
    let output = world.oncely_with(arguments, &[(name, url.as_str())]).await;
    let text = stdout(&output) + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("secret"), "{text}");
    (output.status.code().unwrap(), text)
}

const MIRROR_QUEUE: &str = "select count(*) from oncely.mirror_queue";
const ANSWERED: &str =
    "select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror' and key = 'k'";

/// Sends a copy of a message that took effect until Redis has answered for one more.
async fn redis_answers(world: &mut World) {
    let before = world.count(ANSWERED).await;
    for copy in 1_i64.. {
        let all = world.count("select count(*) from oncely.audit where outcome = 'duplicate'").await;
        world.publish("payments", message("acme", "k"), "{}").await;
        world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", all + 1).await;
        if world.count(ANSWERED).await > before {
            return;
        }
        assert!(copy < 2_000, "Redis answers for none");
    }
}

#[tokio::test]
async fn a_worker_and_a_relay_follow_the_master_without_a_restart() {
    let mut redis = servers().await;
    let mut world = world(&redis).await;
    let worker = world.start_with("worker", "worker", &login("worker"));
    let relay = world.start_with("relay", "relay", &login("relay"));
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    redis_answers(&mut world).await;
    let (code, text) = told(&world, &["doctor", "--only", "redis"]).await;
    assert!(code == 0 && text.contains("0 warning, 0 error"), "{text}");
    assert_eq!(told(&world, &["mirror", "verify"]).await.0, 0);

    redis.wait_for_replica().await.unwrap();
    redis.fail_over().await.unwrap();
    // It was written to the old one, and goes on with the new one: what the replica had is known, and what comes is said there.
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    redis_answers(&mut world).await;
    assert_eq!(redis.master().await.unwrap(), 1);
    assert!(keys(&redis.nodes[1]).await > 0);
    assert_eq!(told(&world, &["mirror", "verify"]).await.0, 0);

    // The old one comes back, empty, and a Sentinel is gone: nobody is disturbed.
    redis.nodes[0].restart().await.unwrap();
    redis.sentinels[0].kill().unwrap();
    world.publish("payments", message("acme", "later"), "{}").await;
    world.wait_for(MIRROR_QUEUE, 0).await;
    redis_answers(&mut world).await;
    let (code, text) = told(&world, &["doctor", "--only", "redis.reach"]).await;
    assert!(code == 1 && text.contains("redis.sentinels") && text.contains("the others are asked"), "{text}");
    for process in [worker, relay] {
        assert!(std::path::Path::new("/proc").join(process.id().to_string()).exists(), "none was restarted");
        world.stop(process).await;
    }
    assert_eq!(world.count("select count(*) from app.effects").await, 3);
}

#[tokio::test]
async fn a_server_that_the_sentinels_name_and_that_is_no_master_is_not_taken() {
    let mut redis = servers().await;
    let world = world(&redis).await;
    // Alone it can't agree with anybody, and names whom it named.
    redis.sentinels.drain(1..);
    let (code, text) = told(&world, &["mirror", "stats"]).await;
    assert_eq!(code, 0, "{text}");
    let mut master = connect(&redis.nodes[0]).await;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(1).query_async::<()>(&mut master).await.unwrap();
    let (code, text) = told(&world, &["mirror", "stats"]).await;
    assert!(code == 1 && text.contains("is a replica"), "{text}");
}

#[tokio::test]
async fn a_sentinel_that_knows_no_such_master_or_lets_nobody_in_is_told() {
    let redis = servers().await;
    let mut world = world(&redis).await;
    let other = [("ONCELY_REDIS__URL", "redis://another")];
    let output = world.oncely_with(&["doctor", "--only", "redis.reach"], &other).await;
    assert!(stdout(&output).contains("know no master \"another\""), "{}", stdout(&output));
    world.reconfigure(SentinelRedis::PASSWORD, "S3CR3T");
    let output = world.oncely(&["doctor", "--only", "redis.reach"]).await;
    let text = stdout(&output);
    assert!(text.contains("redis.sentinels") && text.contains("user or password is refused"), "{text}");
    assert!(!text.contains("S3CR3T"), "{text}");
}
