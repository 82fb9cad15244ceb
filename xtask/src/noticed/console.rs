//! The console's Overview, as somebody reads it who has followed the link.

use std::time::Duration;

use anyhow::Context as _;

use super::http::{get, post};

const LIMIT: Duration = Duration::from_secs(10);
/// Elements that are part of a sentence.
const INLINE: [&str; 10] = ["a", "abbr", "b", "bdi", "code", "em", "q", "small", "span", "time"];

pub(super) struct Console {
    /// `http://127.0.0.1:PORT/`.
    address: String,
    cookie: String,
}

impl Console {
    /// Follows the link, which lets one in once.
    pub(super) async fn enter(link: &str) -> anyhow::Result<Self> {
        let (address, _) = link.split_once("login?").context("no link")?;
        let (page, token) = link.split_once("?token=").context("no token")?;
        let answer = post(page, address.trim_end_matches('/'), &format!("token={token}"), LIMIT).await?;
        let cookie = answer.cookie.context("the console gave no cookie")?;
        Ok(Self { address: address.to_owned(), cookie })
    }

    /// Its sentences.
    pub(super) async fn overview(&self) -> anyhow::Result<Vec<String>> {
        let answer = get(&self.address, Some(&self.cookie), LIMIT).await?;
        anyhow::ensure!(answer.body.contains("<h1"), "{}: {}", answer.status, answer.body);
        Ok(sentences(&answer.body))
    }
}

/// The text of a page: an element that is no part of a sentence ends one.
fn sentences(page: &str) -> Vec<String> {
    let mut text = String::new();
    for part in page.split('<') {
        let Some((tag, rest)) = part.split_once('>') else { continue };
        let name = tag.trim_start_matches('/').split(|c: char| !c.is_ascii_alphanumeric()).next();
        if !name.is_some_and(|name| INLINE.contains(&name)) {
            text.push('\n');
        }
        text.push_str(rest);
    }
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}
