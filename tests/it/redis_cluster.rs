//! Redis Cluster: the mirror's slot and the keys of leases are found wherever they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncely::config::Config;
use oncely::identity::Identity;
use oncely::lease::{Claim, ClaimOutcome, LeaseStore as _};
use oncely::redis_store::{RedisSettings, RedisStore};
use testbed::RedisCluster;

use crate::command_line::stdout;
use crate::lease_stores::{claim, identity};
use crate::support::{World, message};

fn refused(redis: &str) -> String {
    let text = format!(
        "[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n[redis]\n{redis}\n"
    );
    Config::parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn what_is_no_cluster_is_refused() {
    let many = "url = [\"redis://u:p@127.0.0.1:1\", \"redis://u:p@127.0.0.1:2\"]\nallow_plaintext = true";
    assert_eq!(refused(&format!("{many}\ncluster = true")), "");
    for (bad, what) in [
        (many.to_owned(), "redis.url: names several servers"),
        (
            "url = \"redis://127.0.0.1:1\"\ncluster = true".to_owned(),
            "goes to the cluster of 127.0.0.1 in plaintext",
        ),
        (
            format!("{many}\ncluster = true\nsentinels = [\"redis://127.0.0.1:3\"]"),
            "redis.cluster: is for a cluster",
        ),
        (
            "url = [\"redis://127.0.0.1:1\", \"redis://:S3CR3T@127.0.0.1:2\"]\ncluster = true".to_owned(),
            "differ in more than host and port",
        ),
        ("url = \"redis://127.0.0.1:1/2\"\ncluster = true".to_owned(), "redis.url: has a database"),
    ] {
        let told = refused(&bad);
        assert!(told.contains(what), "{bad}: {told}");
        assert!(!told.contains("CR3T"), "{bad}: {told}");
    }
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

async fn takes_effect(world: &mut World, key: &str, effects: i64) {
    world.publish("payments", message("acme", key), "{}").await;
    world.wait_for("select count(*) from app.effects", effects).await;
    world.wait_for(MIRROR_QUEUE, 0).await;
}

#[tokio::test]
async fn the_mirror_follows_its_slot_to_another_master_and_through_a_failover() {
    let mut redis = RedisCluster::start(&[]).await.unwrap();
    let mut world = World::new().await;
    world.configure(&format!(
        "[redis]\nurl = {:?}\ncluster = true\nallow_plaintext = true\n[mirror]\nbudget = \"5s\"\nprecheck = \"trust\"\n\
         [audit]\nduplicates = true\n[relay]\npoll = \"20ms\"",
        redis.urls()
    ));
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    takes_effect(&mut world, "k", 1).await;
    redis_answers(&mut world).await;
    let output = world.oncely(&["mirror", "verify"]).await;
    assert!(output.status.success(), "{}", stdout(&output));
    let output = world.oncely(&["doctor", "--only", "redis"]).await;
    assert!(stdout(&output).contains("0 error"), "{}", stdout(&output));

    let slot = redis.slot_of("{main}").await.unwrap();
    let master = redis.master_of(slot).await.unwrap();
    redis.move_slot(slot, (master + 1) % 3).await.unwrap();
    takes_effect(&mut world, "moved", 2).await;
    redis_answers(&mut world).await;

    redis.fail_over(slot).await.unwrap();
    takes_effect(&mut world, "later", 3).await;
    redis_answers(&mut world).await;
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_server_without_cluster_mode_is_no_cluster() {
    let redis = testbed::Redis::start().await.unwrap();
    let mut settings = RedisSettings::new(&redis.url());
    (settings.cluster, settings.allow_plaintext) = (true, true);
    let told = RedisStore::open(settings.clone()).await.err().unwrap().to_string();
    assert!(told.contains("Redis is no node of a cluster"), "{told}");
    settings.sentinels = vec![redis.url().into()];
    let told = RedisStore::open(settings.clone()).await.err().unwrap().to_string();
    assert!(told.contains("sentinels are for one master"), "{told}");
    (settings.cluster, settings.sentinels) = (false, Vec::new());
    settings.other_nodes = vec![redis.url().into()];
    let told = RedisStore::open(settings).await.err().unwrap().to_string();
    assert!(told.contains("set RedisSettings::cluster"), "{told}");
}

/// A claim whose lease outlasts the test.
fn held<'a>(identity: &'a Identity, owner: &'a str) -> Claim<'a> {
    Claim { lease: Duration::from_secs(300), ..claim(identity, owner) }
}

#[tokio::test]
async fn leases_are_kept_on_all_masters_while_slots_move_and_a_master_dies() {
    let mut redis = RedisCluster::start(&[]).await.unwrap();
    let mut settings = RedisSettings::new(&redis.urls()[0]);
    settings.cluster = true;
    settings.allow_plaintext = true;
    settings.other_nodes = redis.urls()[1..].iter().map(|url| url.as_str().into()).collect();
    let store = RedisStore::open(settings).await.unwrap();
    // Keys of all masters.
    let keys: Vec<_> = (0..60).map(|number| identity(&format!("order {number}"))).collect();
    for key in &keys {
        let granted = store.claim(&held(key, "first")).await.unwrap();
        assert!(matches!(granted, ClaimOutcome::Granted(_)), "{granted:?}");
    }
    // Each slot with a key moves, while another task claims.
    let is_moving = Arc::new(AtomicBool::new(true));
    let claiming = {
        let (store, keys, is_moving) = (store.clone(), keys.clone(), Arc::clone(&is_moving));
        tokio::spawn(async move {
            while is_moving.load(Ordering::Relaxed) {
                for key in &keys {
                    let second = store.claim(&held(key, "second")).await.unwrap();
                    assert!(matches!(second, ClaimOutcome::InFlight(_)), "{second:?}");
                }
            }
        })
    };
    for key in keys.iter().take(12) {
        let slot = redis.slot_of(&store.place(key)).await.unwrap();
        let master = redis.master_of(slot).await.unwrap();
        redis.move_slot(slot, (master + 1) % 3).await.unwrap();
    }
    is_moving.store(false, Ordering::Relaxed);
    claiming.await.unwrap();

    // Calls that fail meanwhile must not keep later ones from the new master.
    let slot = redis.slot_of(&store.place(&keys[59])).await.unwrap();
    let trying = async {
        loop {
            let _ = store.claim(&held(&keys[59], "third")).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        done = redis.fail_over(slot) => done.unwrap(),
        () = trying => {}
    }
    for key in &keys {
        testbed::eventually("the key is served", || async {
            match store.claim(&held(key, "third")).await {
                Ok(ClaimOutcome::InFlight(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
    }
}
