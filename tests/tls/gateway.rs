//! A gateway before a service that speaks HTTPS, with certificates of both sides.

use std::sync::atomic::Ordering;

use testbed::Credentials;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::endpoint::serve;
use crate::servers::{Files, HOST, authority};
use crate::support::{World, http};

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_sends_nothing_to_a_service_that_it_can_not_believe() {
    let (ours, server) = authority("ours");
    let (other, _) = authority("other");
    let (port, requests) = serve(&server).await;
    let files = |credentials: &Credentials| Files::new(credentials);
    let (good, foreign) = (files(&ours.issue("app", &[]).unwrap()), files(&other.issue("app", &[]).unwrap()));
    let all = |files: &Files| {
        let file = |name: &str| files.path(name);
        format!("ca = {:?}, cert = {:?}, key = {:?}", file("ca.pem"), file("cert.pem"), file("key.pem"))
    };
    let mut world = World::new().await;
    for (number, (host, tls, expected)) in [
        (HOST, all(&foreign), "503 "),
        (HOST, format!("ca = {:?}", good.path("ca.pem")), "503 "),
        ("127.0.0.1", all(&good), "503 "),
        (HOST, all(&good), "201 "),
    ]
    .into_iter()
    .enumerate()
    {
        let before = requests.load(Ordering::SeqCst);
        let text = format!(
            "[gateway]\nupstream = \"https://{host}:{port}\"\nlisten = \"127.0.0.1:0\"\nprincipal = []\ntls = {{ {tls} }}\n"
        );
        std::fs::write(world.file(), text).unwrap();
        let gateway = world.start_verb("oncely", &["gateway"], &format!("gateway-{number}"), &[]);
        let mut stream = TcpStream::connect(http::address(&gateway).await).await.unwrap();
        let request = "POST /pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{number}: {answer}");
        let is_sent = expected == "201 ";
        assert_eq!(requests.load(Ordering::SeqCst) - before, usize::from(is_sent), "{number}");
        // That nothing was sent is known, so a retry is sent on.
        let attempts = "select coalesce(max(attempts), 0)::bigint from oncely.idempotency_keys";
        assert_eq!(world.count(attempts).await, i64::from(is_sent), "{number}");
        world.stop(gateway).await;
    }
}
