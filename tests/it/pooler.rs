//! A pooler that shares sessions is told from PostgreSQL.

use testbed::PgBouncer;

use crate::support::World;

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_refused_with_the_reason() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let url = world.database.url().to_owned();
    let unknown = "ignore_startup_parameters = extra_float_digits";
    let dropped = "ignore_startup_parameters = extra_float_digits,options";
    for (settings, database) in [
        // It refuses what it does not know.
        (unknown, ""),
        // It drops it.
        (dropped, ""),
        // It is set on the server's side, so only the process tells.
        (dropped, "connect_query='set lock_timeout = 10000'"),
    ] {
        let Some(pooler) = PgBouncer::start(&url, settings, database).await.unwrap() else { return };
        let through = [("DATABASE_URL", pooler.through(&url).unwrap())];
        let through: Vec<(&str, &str)> = through.iter().map(|(name, url)| (*name, url.as_str())).collect();
        let checked = world.oncely_with(&["check"], &through).await;
        let told = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(78), "{settings} {database}: {told}");
        assert!(told.contains("pooler in between"), "{settings} {database}: {told}");
        assert!(!told.contains("not reached"), "{told}");
        let environment = [("DATABASE_URL", through[0].1.to_owned())];
        let mut worker = world.start_with("worker", "worker", &environment);
        let status = worker.ended(std::time::Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(78), "{}", worker.output());
    }
}
