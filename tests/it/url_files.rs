//! URLs in files: what is wrong with them is said at the start, and a new one is used without a restart.

use oncely::config::Config;
use sqlx::AssertSqlSafe;
use testbed::{Redis, Scratch, VirtualHost};

use crate::support::{Login, World, message, servers};

fn refused(text: &str) -> String {
    let all = format!("[rabbitmq]\nurl = \"amqp://localhost\"\n[postgres]\n{text}");
    Config::parse(&all).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn a_file_that_holds_no_url_and_a_url_that_is_said_twice_are_refused() {
    let folder = Scratch::new("urls").unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let good = file("good", "postgres://u:S3CR3T@localhost/d\n");
    assert_eq!(refused(&format!("url_file = {good:?}")), "");
    let missing = folder.path().join("missing").display().to_string();
    let (empty, other) = (file("empty", "\n"), file("other", "S3CR3T"));
    let far = file("far", "postgres://u:S3CR3T@db/d");
    for (text, what) in [
        (format!("url_file = {missing:?}"), "postgres.url_file: ".to_owned() + &missing + ": can't be read"),
        (format!("url_file = {empty:?}"), "postgres.url_file: ".to_owned() + &empty + ": is empty"),
        (format!("url_file = {other:?}"), "postgres.url_file: is not a URL like".to_owned()),
        (format!("url_file = {far:?}"), "postgres.url_file: goes to db in plaintext".to_owned()),
        (
            format!("url_file = {good:?}\nurl = \"postgres://u@localhost/d\""),
            "postgres.url_file: is set twice: leave out url or url_file (DATABASE_URL or DATABASE_URL_FILE)"
                .to_owned(),
        ),
        (String::new(), "postgres.url: is missing".to_owned()),
    ] {
        let told = refused(&text);
        assert!(told.contains(&what) && !told.contains("S3CR3T"), "{text}: {told}");
    }
}

#[tokio::test]
async fn logins_that_are_replaced_in_their_files_are_used_without_a_restart() {
    let rabbitmq = VirtualHost::create().await.unwrap();
    let mut urls = servers().await.urls().clone();
    urls.rabbitmq = rabbitmq.url();
    let mut world = World::on(urls).await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let logins =
        [Login::create(&mut world, "oncely_worker").await, Login::create(&mut world, "oncely_worker").await];
    for login in &logins {
        let grant = format!(
            "grant all on schema app to {0}; grant all on all tables in schema app to {0}",
            login.name
        );
        sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut world.sql).await.unwrap();
    }
    let user = rabbitmq.name();
    rabbitmq.user(user, "old").await.unwrap();
    rabbitmq.permit(user, [".*"; 3]).await.unwrap();
    let folder = Scratch::new("urls").unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let write = |login: &Login, password: &str| {
        std::fs::write(file("database"), format!("{}\n", login.url)).unwrap();
        std::fs::write(file("amqp"), rabbitmq.url_as(user, password)).unwrap();
    };
    write(&logins[0], "old");
    let environment = [("DATABASE_URL_FILE", file("database")), ("AMQP_URL_FILE", file("amqp"))];
    let worker = world.start_with("worker", "worker", &environment);
    world.publish("payments", message("acme", "before"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'before'", 1).await;

    // First the servers forget the old ones: nobody comes in with them.
    rabbitmq.user(user, "new").await.unwrap();
    let ended = format!(
        "alter role {0} nologin; select pg_terminate_backend(pid) from pg_stat_activity where usename = '{0}'",
        logins[0].name
    );
    sqlx::raw_sql(AssertSqlSafe(ended)).execute(&mut world.sql).await.unwrap();
    rabbitmq.close_connections(user).await.unwrap();
    world.wait_for_line(&worker, "ACCESS_REFUSED").await;
    write(&logins[1], "new");
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for("select count(*) from app.effects where key = 'after'", 1).await;
    world.stop(worker).await;
    for login in logins {
        let revoke = format!(
            "revoke all on schema app from {0}; revoke all on all tables in schema app from {0}",
            login.name
        );
        sqlx::raw_sql(AssertSqlSafe(revoke)).execute(&mut world.sql).await.unwrap();
        login.drop_now(&mut world).await;
    }
}

#[tokio::test]
async fn a_password_of_redis_that_is_replaced_in_its_file_is_used_without_a_restart() {
    let redis = Redis::start().await.unwrap();
    let books = redis::Client::open(redis.url()).unwrap();
    // Stays in, whatever the password becomes.
    let mut books = books.get_multiplexed_async_connection().await.unwrap();
    let mut ask = async |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query_async::<redis::Value>(&mut books).await.unwrap()
    };
    let empty = redis::Value::Int(0);
    let folder = Scratch::new("urls").unwrap();
    let file = folder.path().join("redis");
    let write = |password: &str| {
        let url = redis.url().replace("redis://", &format!("redis://:{password}@"));
        std::fs::write(&file, format!("{url}\n")).unwrap();
    };
    ask(&["CONFIG", "SET", "requirepass", "old"]).await;
    write("old");
    let mut world = World::new().await;
    world.configure(&format!(
        "[redis]\nurl_file = {:?}\n[mirror]\nbudget = \"5s\"\n[relay]\npoll = \"20ms\"",
        file.display().to_string()
    ));
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "before"), "{}").await;
    let pending = "select count(*) from oncely.mirror_queue";
    world.wait_for("select count(*) from app.effects", 1).await;
    world.wait_for(pending, 0).await;
    assert_ne!(ask(&["DBSIZE"]).await, empty);

    // The server forgets the old one: nobody comes in with it.
    ask(&["CONFIG", "SET", "requirepass", "new"]).await;
    ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
    ask(&["FLUSHALL"]).await;
    world.publish("payments", message("acme", "after"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    world.wait_for_line(&relay, "cannot write mirror records").await;
    assert_eq!(ask(&["DBSIZE"]).await, empty);
    write("new");
    world.wait_for(pending, 0).await;
    assert_ne!(ask(&["DBSIZE"]).await, empty);
    world.stop(worker).await;
    world.stop(relay).await;
}
