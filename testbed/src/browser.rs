//! A browser's part of HTTP: a session, pages that it knows already, forms, and streams.

use std::collections::BTreeMap;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::{Url, form_urlencoded};

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    head: String,
    /// What is to be shown.
    pub body: String,
}

impl Answer {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The part of the text between two others, where both are there.
    #[must_use]
    pub fn between(&self, before: &str, after: &str) -> Option<&str> {
        Some(self.body.split_once(before)?.1.split_once(after)?.0)
    }

    /// The hidden fields of the form that goes to `action`; `None` where there is no such form.
    #[must_use]
    pub fn form(&self, action: &str) -> Option<Vec<(String, String)>> {
        let form = self.between(&format!(" action=\"{action}\""), "</form>")?;
        let inputs = form.split("<input").skip(1).filter_map(|rest| rest.split('>').next());
        let hidden = inputs.filter(|input| attribute(input, "type").as_deref() == Some("hidden"));
        Some(
            hidden
                .filter_map(|input| Some((attribute(input, "name")?, attribute(input, "value")?)))
                .collect(),
        )
    }
}

/// An attribute's value, as a browser reads it.
fn attribute(element: &str, name: &str) -> Option<String> {
    let (_, rest) = element.split_once(&format!(" {name}=\""))?;
    let value = rest.split('"').next()?;
    Some(value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// Somebody who has come in.
#[derive(Clone, Debug)]
pub struct Browser {
    /// `host:port`.
    address: String,
    cookie: String,
    /// What it knows of pages: their tags, by path.
    known: BTreeMap<String, String>,
}

impl Browser {
    /// The links that a console has printed so far, the last one last.
    pub fn links(output: &str) -> impl DoubleEndedIterator<Item = &str> {
        output.lines().map(str::trim).filter(|line| line.contains("/login?token="))
    }

    /// Comes in by a link that works once.
    pub async fn follow(link: &str) -> anyhow::Result<Self> {
        let url = Url::parse(link)?;
        let address = format!("{}:{}", url.host_str().context("no host")?, url.port().context("no port")?);
        let mut browser = Self { address, cookie: String::new(), known: BTreeMap::new() };
        // The page of the link has a form that uses it up.
        let token = url.query_pairs().find(|(name, _)| name == "token").context("no token")?.1.into_owned();
        let answer = browser.post(url.path(), &[("token".to_owned(), token)]).await?;
        let cookie = answer.header("set-cookie").and_then(|cookie| cookie.split(';').next());
        browser.cookie = cookie.with_context(|| format!("not let in: {}", answer.status))?.to_owned();
        browser.known.clear();
        Ok(browser)
    }

    /// A page; where it is the one that is known already, the answer says so (304).
    pub async fn get(&mut self, path: &str) -> anyhow::Result<Answer> {
        let tag = self.known.get(path).map(|tag| ("If-None-Match", tag.as_str()));
        let answer = self.send("GET", path, tag.as_slice(), "").await?;
        if let (200, Some(tag)) = (answer.status, answer.header("etag")) {
            self.known.insert(path.to_owned(), tag.to_owned());
        }
        Ok(answer)
    }

    /// Sends a form.
    pub async fn post(&self, path: &str, fields: &[(String, String)]) -> anyhow::Result<Answer> {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let origin = format!("http://{}", self.address);
        let headers = [("Origin", origin.as_str()), ("Content-Type", "application/x-www-form-urlencoded")];
        self.send("POST", path, &headers, &body).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> anyhow::Result<Answer> {
        let mut stream = self.open(method, path, headers, body).await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        let (head, body) = text.split_once("\r\n\r\n").context("an answer without an end of its headers")?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        let answer = Answer { status, head: head.to_owned(), body: body.to_owned() };
        let length = answer.header("content-length").and_then(|length| length.parse::<usize>().ok());
        anyhow::ensure!(length.is_none_or(|length| length == body.len()), "an answer that broke off");
        Ok(answer)
    }

    /// Sends a request; what comes back is still to be read.
    pub async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let Self { address, cookie, .. } = self;
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nCookie: {cookie}\r\nContent-Length: {}\r\n",
            body.len()
        );
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(body);
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn a_forms_hidden_fields_are_read_as_a_browser_reads_them() {
        let body = "<form action=\"/logout\"><input type=\"hidden\" name=\"csrf\" value=\"x\"></form>\
                    <form class=\"stacked\" method=\"post\" action=\"/do\"><input type=\"hidden\" name=\"csrf\" value=\"a&amp;&quot;b\">\
                    <input id=\"note\" type=\"text\" name=\"note\" required></form>";
        let answer = Answer { status: 200, head: String::new(), body: body.to_owned() };
        assert_eq!(answer.form("/do"), Some(vec![("csrf".to_owned(), "a&\"b".to_owned())]));
        assert_eq!(answer.form("/nowhere"), None);
    }
}
