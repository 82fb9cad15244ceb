//! Several hosts of PostgreSQL: whichever of them takes writes is used.

use oncely::config::Config;
use testbed::Postgres;

use crate::support::http::{address, wait_for};
use crate::support::{World, message, servers};

fn refused(postgres: &str) -> String {
    let text = format!("[postgres]\n{postgres}\n[rabbitmq]\nurl = \"amqp://localhost\"\n");
    Config::parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn hosts_that_are_not_of_one_database_are_refused() {
    for good in [
        "url = [\"postgres://u:p@127.0.0.1:1/d\", \"postgres://u:p@localhost/d\"]",
        "url = \"postgres://u:p@127.0.0.1:1/d postgres://u:p@127.0.0.1:2/d\"",
        "url = [\"postgres://localhost/d\"]",
        "url = [\"postgres://a/d\", \"postgres://b/d\"]\nallow_plaintext = true",
    ] {
        assert_eq!(refused(good), "", "{good}");
    }
    for (bad, what) in [
        ("url = []", "postgres.url: is missing"),
        ("url = [\"postgres://localhost/d\", \"S3CR3T\"]", "postgres.url[1]: is not a URL like"),
        (
            "url = [\"postgres://u:S3CR3T@localhost/d\", \"postgres://u:other@localhost:1/d\"]",
            "they must be a primary and its standbys",
        ),
        ("url = [\"postgres://localhost/d\", \"postgres://localhost:1/e\"]", "a primary and its standbys"),
        (
            "url = [\"postgres://u:S3CR3T@localhost/d\", \"postgres://u:S3CR3T@far/d\"]",
            "postgres.url: goes to far in plaintext",
        ),
    ] {
        let told = refused(bad);
        assert!(told.contains(what), "{bad}: {told}");
        assert!(!told.contains("S3") && !told.contains("CR3T"), "{bad}: {told}");
    }
}

#[tokio::test]
async fn the_host_that_takes_writes_is_used_before_and_after_a_failover_and_an_old_primary_never() {
    let mut old = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = old.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    world.configure("[relay]\npoll = \"20ms\"");
    world.apply_topology().await;
    let mut new = old.standby().await.unwrap();
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    let at = |server: &Postgres| format!("{}/{name}", server.url().rsplit_once('/').unwrap().0);
    let both = format!("{} {}", at(&new), at(&old));
    let environment = [("DATABASE_URL", both.clone())];
    let (worker, relay) = (
        world.start_with("worker", "worker", &environment),
        world.start_with("relay", "relay", &environment),
    );
    world.publish("payments", message("acme", "before"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let told = world
        .oncely_with(&["doctor", "--only", "pg.reach", "--json"], &[("DATABASE_URL", both.as_str())])
        .await;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.contains("a standby") && text.contains("takes writes"), "{text}");
    old.wait_for_standby().await.unwrap();

    old.kill().unwrap();
    new.promote().await.unwrap();
    let new_url = at(&new);
    world.sql = <sqlx::PgConnection as sqlx::Connection>::connect(&new_url).await.unwrap();
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    let told = world.oncely_with(&["doctor", "--only", "pg.reach"], &[("DATABASE_URL", both.as_str())]).await;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.contains("the other hosts are used"), "{text}");

    // The old one comes back and takes writes, which nobody would ever read.
    old.restart().await.unwrap();
    let told = world.oncely_with(&["doctor", "--only", "pg.reach"], &[("DATABASE_URL", both.as_str())]).await;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(!told.status.success() && text.contains("accept writes, all of them"), "{text}");
    // What starts now has seen nothing, and asks all of them, whichever stands first.
    let old_first = format!("{} {}", at(&old), at(&new));
    let pause = ["consumers", "pause", "payments", "--reason", "a trial"];
    let paused = world.oncely_with(&pause, &[("DATABASE_URL", old_first.as_str())]).await;
    assert!(paused.status.success(), "{paused:?}");
    assert_eq!(world.count("select count(*) from oncely.controls").await, 1);
    sqlx::query("select oncely.resume_consumer('payments', 'done', 'ana')")
        .execute(&mut world.sql)
        .await
        .unwrap();

    // The new one goes away for a while.
    new.kill().unwrap();
    world.publish("payments", message("acme", "meanwhile"), "{}").await;
    world.wait_for_line(&worker, "an old primary has come back").await;
    new.restart().await.unwrap();
    world.sql = <sqlx::PgConnection as sqlx::Connection>::connect(&new_url).await.unwrap();
    world.wait_for("select count(*) from app.effects", 3).await;
    for process in [worker, relay] {
        assert!(std::path::Path::new("/proc").join(process.id().to_string()).exists(), "none was restarted");
        world.stop(process).await;
    }
    let mut past = <sqlx::PgConnection as sqlx::Connection>::connect(&at(&old)).await.unwrap();
    let effects: i64 =
        sqlx::query_scalar("select count(*) from app.effects").fetch_one(&mut past).await.unwrap();
    assert_eq!(effects, 1, "nothing was done in the past");
}

#[tokio::test]
async fn a_worker_that_meets_an_old_primary_behind_one_address_is_ready_when_the_new_one_is_back() {
    let old = Postgres::start(&[]).await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.postgres = old.url();
    let mut world = World::on(urls).await;
    world.configure("[worker]\nlisten = \"127.0.0.1:0\"");
    world.consumer("payments", "");
    world.apply_topology().await;
    let new = old.standby().await.unwrap();
    let at = |server: &Postgres| -> std::net::SocketAddr {
        format!("127.0.0.1:{}", url::Url::parse(&server.url()).unwrap().port().unwrap()).parse().unwrap()
    };
    let (proxy, through) = world.proxied_postgres().await;
    let worker = world.start_with("worker", "worker", &through);
    let address = address(&worker).await;
    wait_for(&address, "/readyz", 200, "").await;
    new.promote().await.unwrap();
    proxy.retarget(at(&new));
    proxy.cut();
    let name = world.database.url().rsplit('/').next().unwrap().to_owned();
    let new_url = format!("{}/{name}", new.url().rsplit_once('/').unwrap().0);
    world.sql = <sqlx::PgConnection as sqlx::Connection>::connect(&new_url).await.unwrap();
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;

    // For a while the address leads to the old one again, which is still there.
    proxy.retarget(at(&old));
    proxy.cut();
    world.publish("payments", message("acme", "meanwhile"), "{}").await;
    world.wait_for_line(&worker, "an old primary has come back").await;
    wait_for(&address, "/readyz", 503, "PostgreSQL does not answer").await;
    // Whoever has a connection to the old one keeps it, unless he lets go of it himself.
    proxy.retarget(at(&new));
    wait_for(&address, "/readyz", 200, "").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.stop(worker).await;
}
