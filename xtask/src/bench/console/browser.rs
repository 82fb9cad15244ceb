//! Somebody's browser, as far as a console can tell: it came in by the one-time link, and keeps the cookie and the tags of what it has seen.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use testbed::{Process, eventually_within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A browser at a console.
#[derive(Clone, Debug)]
pub(super) struct Browser {
    address: String,
    cookie: String,
    /// By path.
    tags: BTreeMap<String, String>,
}

/// What came back.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: String,
    /// From the first byte sent to the first that came back, and to the last.
    pub(super) first_byte: Duration,
    pub(super) whole: Duration,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Where the link with an id leads.
    pub(super) fn link(&self, id: &str) -> Option<String> {
        let (_, rest) = self.body.split_once(&format!("id=\"{id}\""))?;
        let (element, _) = rest.split_once('>')?;
        let (_, href) = element.split_once("href=\"")?;
        Some(href.split_once('"')?.0.replace("&amp;", "&"))
    }
}

impl Browser {
    /// Comes in by the link that a console has printed.
    pub(super) async fn come_in(console: &Process) -> anyhow::Result<Self> {
        let printed = || async {
            let output = console.output();
            let link = output.lines().find_map(|line| line.strip_prefix("http://")).map(str::to_owned);
            link.with_context(|| format!("no link in\n{output}"))
        };
        let link =
            eventually_within(Duration::from_secs(20), "the console has printed its link", printed).await?;
        let (address, path) = link.split_once('/').context("no path in the link")?;
        let mut browser = Self { address: address.to_owned(), cookie: String::new(), tags: BTreeMap::new() };
        let (path, token) = path.split_once("?token=").context("no token in the link")?;
        let answer = browser.post(path, &format!("token={token}")).await?;
        let cookie = answer.header("set-cookie").with_context(|| format!("no cookie:\n{}", answer.head))?;
        browser.cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(browser)
    }

    /// A page that somebody opens.
    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        self.ask(path, "Sec-Fetch-Mode: navigate\r\n").await
    }

    /// A page as its script asks for it again, to put its live part in the old one's place.
    pub(super) async fn poll(&mut self, path: &str) -> anyhow::Result<Answer> {
        let mut more = format!("HX-Request: true\r\nHX-Current-URL: http://{}{path}\r\n", self.address);
        if let Some(tag) = self.tags.get(path) {
            more.push_str(&format!("If-None-Match: {tag}\r\n"));
        }
        let answer = self.ask(path, &more).await?;
        if let Some(tag) = answer.header("etag") {
            self.tags.insert(path.to_owned(), tag.to_owned());
        }
        Ok(answer)
    }

    /// Reads a stream of events until it ends; `each` is told of every part that comes.
    pub(super) async fn follow(&self, path: &str, mut each: impl FnMut(&[u8])) -> anyhow::Result<()> {
        let mut stream = self.send(path, "Accept: text/event-stream\r\n").await?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = stream.read(&mut buffer).await?;
            match buffer.get(..length) {
                Some(part) if length > 0 => each(part),
                _ => return Ok(()),
            }
        }
    }

    async fn ask(&self, path: &str, more: &str) -> anyhow::Result<Answer> {
        let began = Instant::now();
        let stream = self.send(path, more).await?;
        Self::answer(path, began, stream).await
    }

    /// Sends a form as a page of the console does.
    async fn post(&self, path: &str, form: &str) -> anyhow::Result<Answer> {
        let began = Instant::now();
        let mut stream = TcpStream::connect(&self.address).await?;
        let request = format!(
            "POST /{path} HTTP/1.1\r\nHost: {0}\r\nConnection: close\r\nOrigin: http://{0}\r\nSec-Fetch-Site: same-origin\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {1}\r\n\r\n{form}",
            self.address,
            form.len()
        );
        stream.write_all(request.as_bytes()).await?;
        Self::answer(path, began, stream).await
    }

    async fn answer(path: &str, began: Instant, mut stream: TcpStream) -> anyhow::Result<Answer> {
        let mut bytes = vec![stream.read_u8().await.with_context(|| format!("no answer to {path}"))?];
        let first_byte = began.elapsed();
        stream.read_to_end(&mut bytes).await?;
        let whole = began.elapsed();
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no answer to {path}"))?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        Ok(Answer { status, head: head.to_owned(), body: body.to_owned(), first_byte, whole })
    }

    async fn send(&self, path: &str, more: &str) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nCookie: {}\r\nSec-Fetch-Site: same-origin\r\n{more}\r\n",
            self.address, self.cookie
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }
}
