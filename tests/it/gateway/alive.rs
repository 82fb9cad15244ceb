//! Who is alive: a gateway's row in `oncely.processes`.

use serde_json::Value;
use testbed::eventually;

use super::{Site, Upstream};
use crate::command_line::stdout;
use crate::support::{Login, World};

#[tokio::test]
async fn a_gateway_is_seen_as_workers_and_relays_are() {
    let mut world = World::new().await;
    // As it is meant to run.
    let login = Login::create(&mut world, "oncely_worker").await;
    let mut site = Site::of(world, Upstream::start().await, "", &login.environment()).await;
    let rows = format!(
        "select count(*) from oncely.processes where kind = 'gateway' and name = 'gateway' and state = 'ready' and login = '{}'",
        login.name
    );
    site.world.wait_for(&rows, 1).await;
    let status = stdout(&site.world.oncely(&["status"]).await);
    assert!(
        status.lines().any(|line| line.contains("gateway  gateway") && line.contains(&login.name)),
        "{status}"
    );
    let top: Value =
        serde_json::from_str(&stdout(&site.world.oncely(&["top", "--once", "--json"]).await)).unwrap();
    assert_eq!((&top["gateways"], &top["workers"]), (&1.into(), &0.into()), "{top}");
    let top = stdout(&site.world.oncely(&["top", "--once"]).await);
    assert!(top.contains("1 gateway"), "{top}");
    // One that died is missed.
    let (mut dying, _) = site.another("dying").await;
    site.world.wait_for("select count(*) from oncely.processes where name = 'dying'", 1).await;
    site.world.kill(&mut dying);
    eventually("it is missed", || async {
        let status = stdout(&site.world.oncely(&["status"]).await);
        let doctor = stdout(&site.world.oncely(&["doctor", "--only", "live", "--json"]).await);
        let is_told = status.contains("gateway dying") && status.contains("has been silent");
        anyhow::ensure!(is_told && doctor.contains("gateway dying"), "{status}{doctor}");
        Ok(())
    })
    .await
    .unwrap();
    // One that ends in peace is not.
    let Site { mut world, process, upstream, .. } = site;
    world.stop(process).await;
    assert_eq!(world.count("select count(*) from oncely.processes where name = 'gateway'").await, 0);
    drop(upstream);
    login.drop_now(&mut world).await;
}
