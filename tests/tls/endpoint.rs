//! An endpoint that does a consumer's work: HTTPS with certificates of both sides.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::service::service_fn;
use hyper::{Response, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use testbed::Credentials;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::servers::{Files, HOST, authority};
use crate::support::{World, message};

/// Answers 201 to whoever proves who he is. Its port, and how many requests it has read.
pub(crate) async fn serve(credentials: &Credentials) -> (u16, Arc<AtomicUsize>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(credentials.ca.as_bytes()).unwrap()).unwrap();
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(credentials.cert.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(credentials.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let answer = service_fn(|_: hyper::Request<Incoming>| {
                    seen.fetch_add(1, Ordering::SeqCst);
                    async {
                        let mut answer = Response::new("\"done\"".to_owned());
                        *answer.status_mut() = hyper::StatusCode::CREATED;
                        Ok::<_, std::convert::Infallible>(answer)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
            });
        }
    });
    (port, requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_is_believed_and_believes_us_by_certificates_alone() {
    let (ours, server) = authority("ours");
    let (other, _) = authority("other");
    let (port, requests) = serve(&server).await;
    let files = |credentials: &Credentials| Files::new(credentials);
    let (good, foreign) = (files(&ours.issue("app", &[]).unwrap()), files(&other.issue("app", &[]).unwrap()));
    let all = |files: &Files| {
        let file = |name: &str| files.path(name);
        format!("ca = {:?}, cert = {:?}, key = {:?}", file("ca.pem"), file("cert.pem"), file("key.pem"))
    };
    let ca = format!("ca = {:?}", good.path("ca.pem"));
    let mixed = format!(
        "ca = {:?}, cert = {:?}, key = {:?}",
        good.path("ca.pem"),
        foreign.path("cert.pem"),
        foreign.path("key.pem")
    );
    for (host, tls, expected) in [
        (HOST, all(&good), None),
        ("127.0.0.1", format!("{}, server_name = {HOST:?}", all(&good)), None),
        ("127.0.0.1", all(&good), Some("is for other names")),
        (HOST, all(&foreign), Some("is not issued by a trusted authority")),
        (HOST, ca, Some("demands a certificate from us")),
        (HOST, mixed, Some("refuses our certificate")),
    ] {
        let before = requests.load(Ordering::SeqCst);
        let mut world = World::new().await;
        let text = format!(
            "[[consumers]]\nname = \"charges\"\nqueue = {:?}\nqueue_type = \"classic\"\ntenant = {{ header = \"x-tenant-id\" }}\n\
             key = {{ property = \"message_id\" }}\nretry = {{ delays = [\"50ms\"], max_attempts = 3 }}\n\
             handler = {{ http = \"https://{host}:{port}/\", repeat = \"never\", tls = {{ {tls} }} }}",
            world.queue("charges")
        );
        world.configure(&text);
        world.apply_topology().await;
        let worker = world.start("worker");
        world.publish("charges", message("acme", "order"), "{}").await;
        match expected {
            None => {
                let done = "select count(*) from oncely.idempotency_keys where response = '\"done\"'";
                world.wait_for(done, 1).await;
            }
            Some(why) => {
                world.wait_for_line(&worker, why).await;
                assert_eq!(requests.load(Ordering::SeqCst), before, "{why}: nothing was read");
                // Everybody would fail alike: nothing is spent, and nothing is unknown.
                let spent = "select sum(attempts) from oncely.idempotency_keys";
                assert_eq!(world.count(spent).await, 0, "{why}");
                assert_eq!(world.count("select count(*) from oncely.dead_letters").await, 0, "{why}");
            }
        }
        world.stop(worker).await;
    }
}
