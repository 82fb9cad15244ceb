//! A gateway before a service that speaks HTTPS, with certificates of both sides.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use testbed::{Credentials, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::endpoint::serve;
use crate::servers::{Files, HOST, authority};
use crate::support::{World, http};

const REQUEST: &str = "POST /pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}";

/// What a client is answered that believes this authority alone.
async fn asked(address: &str, authority: &str) -> anyhow::Result<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes())?)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let connector = TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::try_from(HOST)?, stream).await?;
    stream.write_all(REQUEST.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_shows_its_clients_a_certificate_and_the_next_one_without_a_restart() {
    let (ours, server) = authority("ours");
    let (other, next) = authority("other");
    let (port, requests) = serve(&server).await;
    let (app, shown) = (Files::new(&ours.issue("app", &[]).unwrap()), Files::new(&server));
    let world = World::new().await;
    let text = format!(
        "[gateway]\nupstream = \"https://{HOST}:{port}\"\nlisten = \"127.0.0.1:0\"\nprincipal = []\n\
         tls = {{ ca = {:?}, cert = {:?}, key = {:?} }}\nlisten_tls = {{ cert = {:?}, key = {:?} }}\n",
        app.path("ca.pem"),
        app.path("cert.pem"),
        app.path("key.pem"),
        shown.path("cert.pem"),
        shown.path("key.pem"),
    );
    std::fs::write(world.file(), text).unwrap();
    let gateway = world.start_verb("oncely", &["gateway"], "gateway", &[]);
    let address = http::address(&gateway).await;
    // Who does not believe it says nothing to it, and it says nothing to who does not ask for TLS.
    assert!(asked(&address, other.pem()).await.is_err());
    let mut plain = TcpStream::connect(&address).await.unwrap();
    plain.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert_eq!(requests.load(Ordering::SeqCst), 0);
    let first = asked(&address, ours.pem()).await.unwrap();
    assert!(first.starts_with("HTTP/1.1 201 "), "{first}");
    // What is no key is not shown, and breaks nothing.
    let key = std::fs::read(shown.path("key.pem")).unwrap();
    std::fs::write(shown.path("key.pem"), "S3CR3T").unwrap();
    world.wait_for_line(&gateway, "the previous one stays in use").await;
    let again = asked(&address, ours.pem()).await.unwrap();
    assert!(again.contains("idempotent-replayed: true"), "{again}");
    std::fs::write(shown.path("key.pem"), key).unwrap();
    next.write(shown.folder()).unwrap();
    eventually("the next certificate", || async {
        let answer = asked(&address, other.pem()).await?;
        anyhow::ensure!(answer.contains("idempotent-replayed: true"), "{answer}");
        Ok(())
    })
    .await
    .unwrap();
    assert!(asked(&address, ours.pem()).await.is_err());
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    let log = world.stopped_log(gateway).await;
    assert!(log.contains("loaded a new TLS certificate") && !log.contains("S3CR3T"), "{log}");
}

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
        stream.write_all(REQUEST.as_bytes()).await.unwrap();
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
