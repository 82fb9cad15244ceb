//! A pooler that shares sessions is told from PostgreSQL, and one that gives each its own is used.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use testbed::PgBouncer;

use crate::support::{World, message};

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
        let status = worker.wait_for_end(std::time::Duration::from_secs(30)).await.unwrap();
        assert_eq!(status.code(), Some(78), "{}", worker.output());
    }
}

/// What the start-up options would say, by default.
const LIMITS: [(&str, &str); 4] = [
    ("statement_timeout", "30s"),
    ("lock_timeout", "5s"),
    ("default_transaction_isolation", "read committed"),
    ("idle_in_transaction_session_timeout", "1min"),
];

#[tokio::test]
async fn a_pooler_in_session_mode_is_used_where_the_login_has_what_start_up_options_would_say() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[relay]\npoll = \"20ms\"");
    world.apply_topology().await;
    let url = world.database.url().to_owned();
    // It knows no start-up options of this kind, in any version. None of the server's processes is used again: each has what held when it
    // came.
    let settings = "pool_mode = session\ndefault_pool_size = 60\nserver_lifetime = 0\n\
        ignore_startup_parameters = extra_float_digits,options";
    let Some(pooler) = PgBouncer::start(&url, settings, "").await.unwrap() else { return };
    let through = pooler.through(&url).unwrap();
    let name = url.rsplit('/').next().unwrap().to_owned();
    let other = format!("alter database {name} set default_transaction_isolation = 'serializable'");
    sqlx::raw_sql(AssertSqlSafe(other)).execute(&mut world.sql).await.unwrap();
    for (setting, value) in LIMITS {
        let checked = world.oncely_with(&["check"], &[("DATABASE_URL", through.as_str())]).await;
        let told = String::from_utf8_lossy(&checked.stdout);
        assert_eq!(checked.status.code(), Some(78), "{setting}: {told}");
        assert!(told.contains(&format!("not in force ({setting})")), "{setting}: {told}");
        assert!(told.contains("lock_timeout = '5000'") && told.contains("session mode"), "{told}");
        let give = format!("alter role postgres in database {name} set {setting} = '{value}'");
        sqlx::raw_sql(AssertSqlSafe(give)).execute(&mut world.sql).await.unwrap();
    }
    let checked = world.oncely_with(&["check"], &[("DATABASE_URL", through.as_str())]).await;
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));

    let environment = [("DATABASE_URL", through.clone())];
    let (worker, relay) = (
        world.start_with("worker", "worker", &environment),
        world.start_with("relay", "relay", &environment),
    );
    for number in 0..20 {
        world.publish("payments", message("acme", &format!("k-{}", number % 10)), "{}").await;
    }
    world.wait_for("select count(*) from app.effects", 10).await;
    let asked = world.oncely_with(&["keys", "show", "k-1"], &[("DATABASE_URL", through.as_str())]).await;
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    world.stop(worker).await;
    world.stop(relay).await;

    // Our own statements see pg_catalog alone there, too: the login's path is its handlers'.
    let mut config = world.config();
    config.postgres.url = through.into();
    let mut session = config.postgres.connect("a test").await.unwrap();
    let path: String = sqlx::query_scalar("show search_path").fetch_one(&mut session).await.unwrap();
    assert_eq!(path, "pg_catalog, pg_temp");
}

#[tokio::test]
async fn programs_that_start_while_a_pooler_has_no_connection_to_give_wait_for_one() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[relay]\npoll = \"20ms\"\n[gateway]\nprincipal = []");
    world.apply_topology().await;
    let url = world.database.url().to_owned();
    let name = url.rsplit('/').next().unwrap().to_owned();
    for (setting, value) in LIMITS {
        let give = format!("alter role postgres in database {name} set {setting} = '{value}'");
        sqlx::raw_sql(AssertSqlSafe(give)).execute(&mut world.sql).await.unwrap();
    }
    let most = 60;
    let settings = format!(
        "pool_mode = session\ndefault_pool_size = 90\nmax_client_conn = {most}\nserver_lifetime = 0\n\
         ignore_startup_parameters = extra_float_digits,options"
    );
    let Some(pooler) = PgBouncer::start(&url, &settings, "").await.unwrap() else { return };
    let through = pooler.through(&url).unwrap();
    let mut others = Vec::new();
    while let Ok(other) = PgConnection::connect(&through).await {
        others.push(other);
    }
    let environment = [("DATABASE_URL", through)];
    let gateway = ["gateway", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let mut all = vec![
        world.start_with("worker", "worker", &environment),
        world.start_with("relay", "relay", &environment),
        world.start_verb("oncely", &gateway, "gateway", &environment),
    ];
    for process in &all {
        // Twice: it has asked again.
        world.wait_for_lines(process, "SQLSTATE 08P01", 2).await;
    }
    drop(others);
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for_line(&all[1], "mirror lane started").await;
    while let Some(process) = all.pop() {
        world.stop(process).await;
    }
}
