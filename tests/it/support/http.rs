//! Asks a program over HTTP.

use testbed::{Process, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Where a program listens, as its log says.
pub(crate) async fn address(process: &Process) -> String {
    address_in(process, "listening").await
}

/// The address in the first line of a log with these words.
pub(crate) async fn address_in(process: &Process, words: &str) -> String {
    eventually("a line with the address", || async {
        let log = process.output();
        // A line that is not complete yet may end within the address.
        let mut lines = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let line = lines.find(|line| line.contains(words) && line.contains("address="));
        let address = line.and_then(|line| line.split("address=").nth(1));
        address.map(|address| address.trim().to_owned()).ok_or_else(|| anyhow::anyhow!("{log}"))
    })
    .await
    .expect("an address")
}

/// Status and body of a GET.
pub(crate) async fn get(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    // HTTP/1.0: no answer comes in chunks.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| anyhow::anyhow!("{answer}"))?;
    let status = head.split(' ').nth(1).ok_or_else(|| anyhow::anyhow!("{head}"))?.parse()?;
    Ok((status, body.to_owned()))
}

/// Waits for a status, and returns the body.
pub(crate) async fn wait_for(address: &str, path: &str, wanted: u16, part: &str) -> String {
    eventually(&format!("{path} says {wanted} and {part:?}"), || async {
        let (status, body) = get(address, path).await?;
        match status == wanted && body.contains(part) {
            true => Ok(body),
            false => Err(anyhow::anyhow!("{status}: {body}")),
        }
    })
    .await
    .expect("in time")
}
