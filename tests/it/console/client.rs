//! A browser's part of HTTP, with every header in the test's own hands.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::form_urlencoded;

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The part of the text between two others.
    pub(crate) fn between(&self, before: &str, after: &str) -> &str {
        let (_, rest) =
            self.body.split_once(before).unwrap_or_else(|| panic!("no {before:?} in\n{}", self.body));
        rest.split_once(after).unwrap_or_else(|| panic!("no {after:?} behind {before:?}")).0
    }
}

/// Somebody who looks at a console.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) address: String,
    /// What the Host header says.
    pub(crate) host: String,
    pub(crate) cookie: Option<String>,
    /// Headers of every request.
    pub(crate) more: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), host: address.to_owned(), cookie: None, more: Vec::new() }
    }

    /// The page that is to be there.
    pub(crate) async fn page(&self, path: &str) -> Answer {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    /// A form as a browser sends it.
    pub(crate) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let origin = format!("http://{}", self.host);
        self.post_with(path, &[("Origin", &origin)], fields).await
    }

    /// A form with headers of the test's own.
    pub(crate) async fn post_with(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        fields: &[(&str, &str)],
    ) -> Answer {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let mut all = vec![("Content-Type", "application/x-www-form-urlencoded")];
        all.extend(headers);
        self.send("POST", path, &all, Some(&body)).await
    }

    /// A form of a page of this session.
    pub(crate) async fn submit(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.token().await;
        let mut all = vec![("csrf", token.as_str())];
        all.extend(fields);
        self.post(path, &all).await
    }

    /// What this session's forms carry.
    pub(crate) async fn token(&self) -> String {
        self.page("/doctor").await.between("name=\"csrf\" value=\"", "\"").to_owned()
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Answer {
        let mut stream = self.open(method, path, headers, body).await;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("an answer");
        let text = String::from_utf8(bytes).expect("UTF-8");
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer to {path}: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = match head.to_lowercase().contains("transfer-encoding: chunked") {
            true => whole(body),
            false => body.to_owned(),
        };
        Answer { status, head: head.to_owned(), body }
    }

    /// Sends a request; what comes back is still to be read.
    pub(crate) async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.expect("a connection");
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.host);
        if let Some(cookie) = &self.cookie {
            head.push_str(&format!("Cookie: theme=dark; {cookie}\r\n"));
        }
        for (name, value) in
            headers.iter().copied().chain(self.more.iter().map(|(n, v)| (n.as_str(), v.as_str())))
        {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        head.push_str(body.unwrap_or_default());
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream
    }
}

/// A body that came in chunks.
fn whole(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).expect("a length");
        if length == 0 {
            break;
        }
        body.push_str(&rest[..length]);
        chunks = &rest[length + 2..];
    }
    body
}

/// A value as it stands in a query.
pub(crate) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
