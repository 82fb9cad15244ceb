//! Sends orders over HTTP, each with a key of its own: as fast as they are answered, or at a fixed rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    port: u16,
    #[arg(long)]
    requests: u64,
    /// Requests of another seed have other keys
    #[arg(long)]
    seed: u64,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 32)]
    connections: u64,
    /// Requests a second; else as fast as they are answered
    #[arg(long)]
    rate: Option<u64>,
    /// So many of the first ones are not among the times
    #[arg(long, default_value_t = 0)]
    warm_up: u64,
    /// All were answered before: each answer must say so
    #[arg(long)]
    replayed: bool,
}

/// What all connections share.
struct Plan {
    next: AtomicU64,
    requests: u64,
    seed: u64,
    rate: Option<u64>,
    warm_up: u64,
    replayed: bool,
    start: Instant,
}

/// Prints how long all took, in seconds, and the middle and the 99th percentile of the times, in milliseconds. A request whose time has come
/// waits for no other one as long as a connection is free; where none is, the wait counts.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for _ in 0..arguments.connections {
        let stream = connect(arguments.port).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        connections.push(sender);
    }
    let plan = Arc::new(Plan {
        next: AtomicU64::new(0),
        requests: arguments.requests,
        seed: arguments.seed,
        rate: arguments.rate,
        warm_up: arguments.warm_up,
        replayed: arguments.replayed,
        start: Instant::now(),
    });
    let mut tasks = JoinSet::new();
    for connection in connections {
        tasks.spawn(send(connection, Arc::clone(&plan)));
    }
    let mut times = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        times.extend(ended??);
    }
    let seconds = plan.start.elapsed().as_secs_f64();
    times.sort_unstable();
    let millis = |share: f64| {
        let rank = ((times.len() as f64 * share).ceil() as usize).max(1) - 1;
        times.get(rank).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    crate::tell(&serde_json::json!({ "seconds": seconds, "p50_ms": millis(0.5), "p99_ms": millis(0.99) }))
}

/// Connects to a server that may not listen yet.
async fn connect(port: u16) -> anyhow::Result<TcpStream> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Err(error)
                if error.kind() == std::io::ErrorKind::ConnectionRefused && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            connected => return Ok(connected?),
        }
    }
}

async fn send(mut sender: SendRequest<Full<Bytes>>, plan: Arc<Plan>) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    loop {
        let number = plan.next.fetch_add(1, Ordering::Relaxed);
        if number >= plan.requests {
            return Ok(times);
        }
        let began = match plan.rate {
            None => Instant::now(),
            Some(rate) => {
                let due = plan.start + Duration::from_nanos(number * 1_000_000_000 / rate);
                match Instant::now() < due {
                    // The timer's own lateness is not the server's.
                    true => {
                        sleep_until(due).await;
                        Instant::now()
                    }
                    false => due,
                }
            }
        };
        let key = format!("{:08x}-e29b-41d4-a716-{number:012x}", plan.seed);
        let body = format!(r#"{{"customer":{number},"amount":4200,"currency":"EUR"}}"#);
        let request = Request::post("/orders")
            .header("host", "shop")
            .header("content-type", "application/json")
            .header("idempotency-key", key)
            .body(Full::new(Bytes::from(body)))?;
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let replayed = response.headers().contains_key("idempotent-replayed");
        let body = response.into_body().collect().await?.to_bytes();
        if number >= plan.warm_up {
            times.push(began.elapsed());
        }
        let text = String::from_utf8_lossy(&body);
        anyhow::ensure!(status == 201 && replayed == plan.replayed, "{status}, replayed: {replayed}: {text}");
    }
}
