//! Redis by Sentinel with TLS: who says where the master is has proved who it is, and so has the master.

use testbed::{Sentinel, SentinelRedis, free_port};

use crate::servers::{Files, HOST, Servers, authority};
use crate::support::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_verified_by_the_host_of_its_url_and_the_master_by_its_address_or_the_name_that_is_set()
{
    let (authority, server) = authority("ours");
    let servers = Servers::start(&server).await;
    let files = Files::new(&authority.issue("app", &[]).unwrap());
    let its = Files::new(&server);
    let (port, file) = (free_port().unwrap(), |name: &str| its.path(name).display().to_string());
    let settings = format!(
        "tls-port {port}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\ntls-auth-clients yes\ntls-replication yes",
        file("cert.pem"),
        file("key.pem"),
        file("ca.pem")
    );
    let _sentinel = Sentinel::start(servers.ports.redis, 1, &settings).await.unwrap();
    let mut world = World::on(servers.urls()).await;
    world.consumer("payments", "");
    let told = async |host: &str, name: &str| {
        let sentinel = format!("rediss://:{}@{host}:{port}", SentinelRedis::PASSWORD);
        let file = |name: &str| files.path(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("cert.pem"), file("key.pem"));
        let mut environment = vec![
            ("ONCELY_REDIS__URL", "rediss://mymaster"),
            ("ONCELY_REDIS__SENTINELS", sentinel.as_str()),
            ("ONCELY_REDIS__TLS__CA", &ca),
            ("ONCELY_REDIS__TLS__CERT", &cert),
            ("ONCELY_REDIS__TLS__KEY", &key),
        ];
        if !name.is_empty() {
            environment.push(("ONCELY_REDIS__TLS__SERVER_NAME", name));
        }
        let output = world.oncely_with(&["doctor", "--only", "redis", "--json"], &environment).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let good = told(HOST, HOST).await;
    assert!(
        good.contains("the master is at 127.0.0.1") && good.contains("TLS; the server is verified"),
        "{good}"
    );
    assert!(!good.contains("wrong_name"), "{good}");
    // The Sentinel tells an address, and the certificate is for a name.
    let master = told(HOST, "").await;
    assert!(master.contains("the master at 127.0.0.1") && master.contains("wrong_name"), "{master}");
    // The name that is set is the master's alone.
    let sentinel = told("127.0.0.1", HOST).await;
    assert!(sentinel.contains("Sentinel at 127.0.0.1") && sentinel.contains("wrong_name"), "{sentinel}");
    for text in [good, master, sentinel] {
        assert!(!text.contains(SentinelRedis::PASSWORD), "{text}");
    }
}
