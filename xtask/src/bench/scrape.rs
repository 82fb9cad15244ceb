//! Whoever reads the metrics of a run.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::task::AbortOnDropHandle;

/// Reads the metrics each second, for as long as what it returns lives: fifteen times as often as Prometheus does.
pub(crate) fn scrape(ports: &[u16]) -> Vec<AbortOnDropHandle<()>> {
    let scrape = |port: u16| async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            // A program that has not started yet is asked again.
            let _ = read_metrics(port).await;
        }
    };
    ports.iter().map(|port| AbortOnDropHandle::new(tokio::spawn(scrape(*port)))).collect()
}

async fn read_metrics(port: u16) -> std::io::Result<usize> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await
}
