//! A client that writes and reads bytes.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Where a server is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client(SocketAddr);

/// A request that is to be made.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: &'static str,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

impl Ask {
    /// A POST to `/pay` with a key.
    pub(super) fn pay(key: &str, body: &str) -> Self {
        Self::bare(body).header("Idempotency-Key", key)
    }

    /// The same without one.
    pub(super) fn bare(body: &str) -> Self {
        let ask = Self { method: "POST", target: "/pay".into(), headers: Vec::new(), body: body.to_owned() };
        ask.header("X-Tenant", "acme")
    }

    pub(super) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn to(self, method: &'static str, target: &str) -> Self {
        Self { method, target: target.to_owned(), ..self }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut head =
            format!("{} {} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n{}", self.body.len(), self.body));
        head.into_bytes()
    }
}

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

    /// The last part of a problem's type.
    pub(super) fn problem(&self) -> String {
        assert_eq!(self.header("content-type").as_deref(), Some("application/problem+json"), "{self:?}");
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status, "{problem}");
        let kind = problem["type"].as_str().unwrap().strip_prefix("urn:oncely:problem:").unwrap();
        kind.to_owned()
    }
}

impl Client {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self(address)
    }

    pub(super) fn address(self) -> SocketAddr {
        self.0
    }

    pub(super) async fn ask(self, ask: &Ask) -> Reply {
        self.send(&ask.bytes()).await.unwrap()
    }

    /// Sends bytes, and reads until the server closes.
    pub(super) async fn send(self, bytes: &[u8]) -> anyhow::Result<Reply> {
        let asked = async {
            let mut stream = TcpStream::connect(self.0).await?;
            // A server that has refused it may not read all of it.
            let _ = stream.write_all(bytes).await;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            read(&answer)
        };
        tokio::time::timeout(Duration::from_secs(60), asked).await?
    }
}

fn read(answer: &[u8]) -> anyhow::Result<Reply> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or_else(|| anyhow::anyhow!("torn: {answer:?}"))?;
    let head = std::str::from_utf8(&answer[..end])?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().parse()?;
    let pair = |line: &str| {
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        (name.to_ascii_lowercase(), value.to_owned())
    };
    Ok(Reply { status, headers: lines.map(pair).collect(), body: answer[end + 4..].to_vec() })
}
