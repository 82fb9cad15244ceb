//! A client that writes and reads bytes.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Where a gateway is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client(pub(super) SocketAddr);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Reply {
    /// The values of a header, joined.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let found: Vec<&str> =
            self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect();
        (!found.is_empty()).then(|| found.join(" | "))
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed").as_deref() == Some("true")
    }

    /// The last part of a problem's type; of another answer nothing.
    pub(super) fn problem(&self) -> String {
        if self.header("content-type").as_deref() != Some("application/problem+json") {
            return String::new();
        }
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status, "{problem}");
        let kind = problem["type"].as_str().unwrap().strip_prefix("urn:oncely:problem:").unwrap();
        kind.to_owned()
    }

    /// Status and problem.
    pub(super) fn said(&self) -> (u16, String) {
        (self.status, self.problem())
    }
}

/// A POST with a key.
pub(super) fn post(path: &str, key: &str, body: &str) -> String {
    with(path, &format!("Idempotency-Key: {key}\r\n"), body)
}

/// A POST with these headers.
pub(super) fn with(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A GET with these headers.
pub(super) fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n{headers}\r\n")
}

impl Client {
    pub(super) async fn ask(self, request: &str) -> Reply {
        self.send(request).await.unwrap_or_else(|error| panic!("{error}: {request}"))
    }

    /// Sends bytes, and reads until the gateway closes.
    pub(super) async fn send(self, request: &str) -> anyhow::Result<Reply> {
        let asked = async {
            let mut stream = TcpStream::connect(self.0).await?;
            // A gateway that has refused it may not read all of it.
            let _ = stream.write_all(request.as_bytes()).await;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            read(&answer)
        };
        tokio::time::timeout(testbed::DEADLINE, asked).await?
    }
}

pub(super) fn read(answer: &[u8]) -> anyhow::Result<Reply> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| anyhow::anyhow!("torn: {:?}", String::from_utf8_lossy(answer)))?;
    let head = std::str::from_utf8(&answer[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().parse()?;
    let pair = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        (name.to_ascii_lowercase(), value.to_owned())
    };
    let mut reply = Reply { status, headers: lines.map(pair).collect(), body: answer[end + 4..].to_vec() };
    if reply.header("transfer-encoding").is_some() {
        reply.body = unchunked(&reply.body)?;
    } else if let Some(length) = reply.header("content-length") {
        anyhow::ensure!(length == reply.body.len().to_string() || reply.body.is_empty(), "torn: {reply:?}");
    }
    Ok(reply)
}

fn unchunked(mut rest: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n");
        let end = end.ok_or_else(|| anyhow::anyhow!("torn between chunks"))?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        if size == 0 {
            anyhow::ensure!(&rest[end..] == b"\r\n\r\n", "trailers: {:?}", String::from_utf8_lossy(rest));
            return Ok(whole);
        }
        let piece = rest.get(end + 2..end + 2 + size).ok_or_else(|| anyhow::anyhow!("torn in a chunk"))?;
        whole.extend(piece);
        rest = rest.get(end + 4 + size..).ok_or_else(|| anyhow::anyhow!("torn behind a chunk"))?;
    }
}
