//! What leaves this machine in plaintext: nothing, unless somebody says so.

use std::net::TcpListener;

use crate::support::World;

/// This machine, by a notation that is not taken for it: what holds for it holds for another machine.
const ELSEWHERE: &str = "127.1";

/// The variables that say where the servers are.
const URLS: [&str; 3] = ["DATABASE_URL", "AMQP_URL", "ONCELY_REDIS__URL"];

async fn check(world: &World, environment: &[(&str, String)]) -> (Option<i32>, serde_json::Value) {
    let environment: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let output = world.oncely_with(&["check", "--json", "--as", "worker"], &environment).await;
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(!told.contains("S3CR3T"), "{told}");
    (output.status.code(), serde_json::from_str(&told).unwrap_or_else(|_| panic!("{output:?}")))
}

#[tokio::test]
async fn nobody_on_another_machine_is_asked_in_plaintext_unless_it_is_allowed_for_that_server() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let listeners = [(); 3].map(|()| TcpListener::bind((ELSEWHERE, 0)).unwrap());
    let [postgres, rabbitmq, redis] =
        listeners.each_ref().map(|listener| listener.local_addr().unwrap().port());
    let environment = [
        (URLS[0], format!("postgres://u:S3CR3T@{ELSEWHERE}:{postgres}/d")),
        (URLS[1], format!("amqp://u:S3CR3T@{ELSEWHERE}:{rabbitmq}/%2f")),
        (URLS[2], format!("redis://:S3CR3T@{ELSEWHERE}:{redis}/")),
        // Of a network for documents: a URL of HTTP has only one notation for this machine.
        ("ONCELY_RABBITMQ__MANAGEMENT", "http://u:S3CR3T@192.0.2.1:15672".to_owned()),
    ];
    let (code, told) = check(&world, &environment).await;
    assert_eq!(code, Some(78), "{told}");
    let problems = told["problems"].as_array().unwrap();
    // All at once, with both ways out.
    for place in ["postgres.url", "rabbitmq.url", "rabbitmq.management", "redis.url"] {
        let of_place = problems.iter().find(|problem| problem["place"] == place);
        let what = of_place.unwrap_or_else(|| panic!("{place}: {told}"))["problem"].as_str().unwrap();
        let host = if place == "rabbitmq.management" { "192.0.2.1" } else { ELSEWHERE };
        assert!(what.contains(&format!("goes to {host} in plaintext")), "{what}");
        let section = place.split('.').next().unwrap();
        assert!(what.contains(&format!("allow_plaintext = true in [{section}]")), "{what}");
    }
    assert_eq!(problems.len(), 4, "{told}");
    for listener in listeners {
        listener.set_nonblocking(true).unwrap();
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    }

    let elsewhere = |url: &str| url.replace("127.0.0.1", ELSEWHERE).replace("localhost", ELSEWHERE);
    let urls = [world.database.url(), &world.urls.rabbitmq, &world.urls.redis].map(elsewhere);
    assert!(urls.iter().all(|url| url.contains(ELSEWHERE)), "{urls:?}");
    let mut environment: Vec<(&str, String)> = URLS.into_iter().zip(urls).collect();
    for allowed in [
        "ONCELY_POSTGRES__ALLOW_PLAINTEXT",
        "ONCELY_RABBITMQ__ALLOW_PLAINTEXT",
        "ONCELY_REDIS__ALLOW_PLAINTEXT",
    ] {
        // One server's word is not the others'.
        assert_eq!(check(&world, &environment).await.0, Some(78));
        environment.push((allowed, "true".to_owned()));
    }
    let (code, told) = check(&world, &environment).await;
    assert_eq!(code, Some(0), "{told}");
}
