//! What goes by without a key, and what of each request and answer goes on.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::client::read;
use super::{Site, get, post, with};

/// Reads until a text is there.
async fn read_until(stream: &mut TcpStream, read: &mut Vec<u8>, text: &str) {
    while !String::from_utf8_lossy(read).contains(text) {
        let mut piece = [0; 1_024];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "the end, without {text}: {}", String::from_utf8_lossy(read));
        read.extend(&piece[..count]);
    }
}

#[tokio::test]
async fn an_answer_without_a_key_comes_piece_by_piece() {
    let site = Site::start("").await;
    let mut stream = TcpStream::connect(site.client.0).await.unwrap();
    stream.write_all(get("/do/drip", "").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    read_until(&mut stream, &mut answer, "first").await;
    assert!(!String::from_utf8_lossy(&answer).contains("second"), "it was not held back");
    site.upstream.go_on();
    read_until(&mut stream, &mut answer, "second").await;
    site.upstream.go_on();
    site.upstream.go_on();
    stream.read_to_end(&mut answer).await.unwrap();
    let reply = read(&answer).unwrap();
    assert_eq!((reply.status, reply.body.as_slice()), (200, &b"firstsecond"[..]), "and no trailers");
    // Events, for as long as there are some.
    let mut stream = TcpStream::connect(site.client.0).await.unwrap();
    stream.write_all(get("/do/events", "").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    read_until(&mut stream, &mut answer, "data: 1").await;
    site.upstream.go_on();
    stream.read_to_end(&mut answer).await.unwrap();
    site.stop().await;
}

#[tokio::test]
async fn an_answer_without_a_key_that_does_not_begin_in_time_is_not_waited_for() {
    let site = Site::start("max_run = \"1s\"").await;
    let late = site.ask(&get("/do/hang", "")).await;
    assert_eq!(late.said(), (504, "upstream-late".to_owned()), "{late:?}");
    // Once it has begun, it takes as long as it does.
    let mut stream = TcpStream::connect(site.client.0).await.unwrap();
    stream.write_all(get("/do/drip", "").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    read_until(&mut stream, &mut answer, "first").await;
    let late = site.ask(&get("/do/hang?again", "")).await;
    assert_eq!(late.status, 504, "more than a second is over");
    (0..5).for_each(|_| site.upstream.go_on());
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(read(&answer).unwrap().body, b"firstsecond");
    site.stop().await;
}

#[tokio::test]
async fn a_request_without_a_key_goes_by_piece_by_piece_where_none_is_required() {
    let site = Site::start("required = false").await;
    let mut stream = TcpStream::connect(site.client.0).await.unwrap();
    let head = "POST /do/200 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..300 {
        let piece = format!("{:x}\r\n{}\r\n", 10_000, "y".repeat(10_000));
        stream.write_all(piece.as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\nX-Sum: 1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let reply = read(&answer).unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    let calls = site.upstream.calls();
    assert_eq!(calls[0].body.len(), 3_000_000, "more than a request with a key may have");
    assert_eq!(calls[0].headers("trailer"), [""; 0]);
    // With a key it is one.
    let request = post("/do/201", "k", "{}");
    assert!(!site.ask(&request).await.is_replayed());
    assert!(site.ask(&request).await.is_replayed());
    site.stop().await;
}

#[tokio::test]
async fn what_is_of_one_hop_ends_at_the_gateway_both_ways() {
    let site = Site::start("").await;
    let headers = "Idempotency-Key: k\r\nConnection: X-Mine\r\nX-Mine: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\
                   Proxy-Authorization: Basic eA==\r\nX-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 198.51.100.1\r\n\
                   Forwarded: for=198.51.100.1\r\nCookie: a=1\r\nExpect: 100-continue\r\n";
    let mut stream = TcpStream::connect(site.client.0).await.unwrap();
    stream.write_all(with("/do/hops", headers, "{}").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let answer = answer.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n").expect("the gateway itself goes on");
    let reply = read(answer.as_bytes()).unwrap();
    for gone in ["x-hop", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(reply.header(gone), None, "{reply:?}");
    }
    assert_eq!(reply.header("link").as_deref(), Some("</a>; rel=next"));
    let call = &site.upstream.calls()[0];
    for gone in [
        "x-mine",
        "te",
        "keep-alive",
        "upgrade",
        "http2-settings",
        "proxy-authorization",
        "expect",
        "forwarded",
        "x-real-ip",
    ] {
        assert_eq!(call.headers(gone), [""; 0], "{gone}: {call:?}");
    }
    for (name, value) in [
        ("host", "shop.example.com"),
        ("cookie", "a=1"),
        ("idempotency-key", "k"),
        ("x-forwarded-for", "127.0.0.1"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-host", "shop.example.com"),
        ("via", "1.1 oncely"),
        ("content-length", "2"),
        ("connection", "close"),
    ] {
        assert_eq!(call.headers(name), [value], "{call:?}");
    }
    site.stop().await;
    let site = Site::start("trusted_proxies = [\"127.0.0.0/8\"]").await;
    let headers = "X-Forwarded-For: 198.51.100.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: shop\r\n";
    assert_eq!(site.ask(&get("/do/200", headers)).await.status, 200);
    let call = &site.upstream.calls()[0];
    assert_eq!(call.headers("x-forwarded-for"), ["198.51.100.1, 127.0.0.1"]);
    assert_eq!(
        (call.headers("x-forwarded-proto"), call.headers("x-forwarded-host")),
        (vec!["https"], vec!["shop"])
    );
    site.stop().await;
}

#[tokio::test]
async fn targets_go_on_byte_for_byte_and_answers_to_head_keep_their_length() {
    let site = Site::start("").await;
    for target in ["/do/200?a=1&b=%2f..%2F", "/a//b/../c;x=1", "//double", "/?", "/%zz"] {
        let reply = site.ask(&get(target, "")).await;
        assert_eq!(reply.status, 200, "{target}: {reply:?}");
        assert_eq!(site.upstream.calls().last().unwrap().target(), target);
    }
    let absolute = "GET http://other.example.com/do/200 HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n";
    assert_eq!(site.ask(absolute).await.status, 200);
    let call = site.upstream.calls().pop().unwrap();
    assert_eq!((call.target(), call.headers("host")), ("/do/200", vec!["other.example.com"]));
    let head = site.ask(&get("/do/head", "").replace("GET", "HEAD")).await;
    assert_eq!((head.status, head.header("content-length").as_deref()), (200, Some("1234")), "{head:?}");
    // Hints come before the answer, and are not passed on.
    assert_eq!(site.ask(&get("/do/early", "")).await.status, 200);
    // Of HTTP/1.0, without a Host.
    let old = site.ask("GET /do/200 HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.status, 200, "{old:?}");
    let call = site.upstream.calls().pop().unwrap();
    assert_eq!(call.headers("host"), [site.upstream.address.to_string()]);
    assert_eq!(call.headers("via"), ["1.0 oncely"]);
    site.stop().await;
}

#[tokio::test]
async fn a_request_with_two_lengths_is_one_request_for_all() {
    let site = Site::start("required = false").await;
    for headers in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 50\r\n",
    ] {
        let smuggled = format!(
            "POST /do/200 HTTP/1.1\r\nHost: shop\r\n{headers}\r\n0\r\n\r\nGET /do/200?smuggled HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n"
        );
        // The coding counts, and the connection ends.
        let reply = site.ask(&smuggled).await;
        assert_eq!((reply.status, reply.header("connection").as_deref()), (200, Some("close")), "{reply:?}");
    }
    for wrong in [
        "Content-Length: 1\r\nContent-Length: 2\r\n",
        "Content-Length: +1\r\n",
        "Content-Length : 1\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "X-A: 1\r\n folded\r\n",
        "X\u{0}: 1\r\n",
    ] {
        let request = format!("POST /do/200 HTTP/1.1\r\nHost: shop\r\n{wrong}\r\na");
        let reply = site.ask(&request).await;
        assert_eq!(reply.status, 400, "{wrong}: {reply:?}");
    }
    let calls = site.upstream.calls();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for call in &calls {
        assert!(call.body.is_empty() && !call.target().contains("smuggled"), "{call:?}");
        let lengths = (call.headers("content-length").len(), call.headers("transfer-encoding").len());
        assert!(lengths == (1, 0) || lengths == (0, 1), "{call:?}");
    }
    site.stop().await;
}
