//! Several nodes of RabbitMQ: one is away, and another one takes its place.

use oncely::config::Config;
use testbed::proxy::Mode;

use crate::support::{World, message};

fn refused(rabbitmq: &str) -> String {
    let text = format!("[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\n{rabbitmq}\n");
    Config::parse(&text).err().map(|problems| problems.to_string()).unwrap_or_default()
}

#[test]
fn nodes_that_are_none_of_one_cluster_are_refused() {
    for good in [
        "url = [\"amqp://u:p@127.0.0.1:1/%2f\", \"amqp://u:p@localhost/%2f\"]",
        "url = \"amqp://u:p@127.0.0.1:1/%2f amqp://u:p@127.0.0.1:2/%2f\"",
        "url = [\"amqp://localhost\"]",
        "url = [\"amqp://a\", \"amqp://b\"]\nallow_plaintext = true",
    ] {
        assert_eq!(refused(good), "", "{good}");
    }
    for (bad, what) in [
        ("url = []", "rabbitmq.url: is missing"),
        ("url = [1]", "rabbitmq.url[0]: must be a text"),
        ("url = [\"amqp://localhost\", \"S3CR3T\"]", "rabbitmq.url[1]: is not a URL like"),
        (
            "url = [\"amqp://u:S3CR3T@localhost\", \"amqp://u:other@localhost:1\"]",
            "they must be nodes of one cluster",
        ),
        ("url = [\"amqp://localhost/a\", \"amqp://localhost:1/b\"]", "they must be nodes of one cluster"),
        (
            "url = [\"amqp://u:S3CR3T@localhost\", \"amqp://u:S3CR3T@far\"]",
            "rabbitmq.url: goes to far in plaintext",
        ),
    ] {
        let told = refused(bad);
        assert!(told.contains(what), "{bad}: {told}");
        assert!(!told.contains("S3") && !told.contains("CR3T"), "{bad}: {told}");
    }
}

#[tokio::test]
async fn a_worker_goes_to_the_node_that_is_there_and_to_the_other_one_when_that_goes_away() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let (first, first_url) = world.proxied_rabbitmq().await;
    let (second, second_url) = world.proxied_rabbitmq().await;
    let both = format!("{first_url} {second_url}");
    first.set(Mode::Refuse);
    let worker = world.start_with("worker", "worker", &[("AMQP_URL", both.clone())]);
    world.publish("payments", message("acme", "k-1"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    let told = world.oncely_with(&["doctor", "--only", "mq.reach"], &[("AMQP_URL", both.as_str())]).await;
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(text.contains("the other nodes are used") && !text.contains("guest:guest"), "{text}");

    first.set(Mode::Pass);
    second.set(Mode::Refuse);
    second.cut();
    world.publish("payments", message("acme", "k-2"), "{}").await;
    world.wait_for("select count(*) from app.effects", 2).await;
    assert!(std::path::Path::new("/proc").join(worker.id().to_string()).exists());
    world.stop(worker).await;
}
