//! All pages, with something on each.

use anyhow::Context as _;

use crate::ground::Ground;
use crate::look::Look;
use crate::seed::{CLOSED, payments};
use crate::site::path;

/// A page, and what it is called here.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) path: String,
}

/// Answers that are no pages to be proud of, and are meant: the browser logs them as errors.
pub(crate) const REFUSED: [&str; 3] = ["/no-such-page", "/login", "/failed/operate"];

/// All of them. The page of an operation takes one that was begun.
pub(crate) async fn places(ground: &Ground) -> anyhow::Result<Vec<Place>> {
    let key = &payments(CLOSED)[0];
    let (letter, group) = letter(ground, key).await?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/failed")).await?;
    let operation = tab
        .ask::<Option<String>>("document.querySelector('a[id^=operation-]')?.getAttribute('href') ?? null")
        .await?;
    tab.close().await?;
    let operation = operation.context("no operation was begun")?;
    let of_group = [("consumer", "payments"), ("group", group.as_str())];
    let plan = |change| path("/failed/plan", &[&of_group[..], &[("change", change)]].concat());
    let place = |name, path: String| Place { name, path };
    Ok(vec![
        place("overview", "/".to_owned()),
        place("overview-tables", "/?as=table".to_owned()),
        place("keys", "/keys".to_owned()),
        place("search", path("/keys", &[("q", "order-1001")])),
        place("key", path("/key", &[("tenant", "acme"), ("consumer", "payments"), ("key", "order-1001")])),
        place("key-failed", path("/key", &[("tenant", "acme"), ("consumer", "payments"), ("key", key)])),
        place("failed", "/failed".to_owned()),
        place("failed-of-one", path("/failed", &[("tenant", "acme")])),
        place("letters", path("/failed/letters", &of_group)),
        place("letter", path("/failed/letter", &[("id", &letter)])),
        place("plan", plan("requeue")),
        place("plan-discard", plan("discard")),
        place("operation", operation),
        place("outbox", "/outbox".to_owned()),
        place("outbox-parked", path("/outbox", &[("state", "parked")])),
        place("consumers", "/consumers".to_owned()),
        place("consumer", path("/consumer", &[("name", "payments")])),
        place("leases", "/leases".to_owned()),
        place("doctor", "/doctor".to_owned()),
        place("nowhere", "/no-such-page".to_owned()),
        place("sign-in", "/login".to_owned()),
    ])
}

/// The id and the group of a key's dead letter.
pub(crate) async fn letter(ground: &Ground, key: &str) -> anyhow::Result<(String, String)> {
    let one = |column: &'static str| async move {
        let query = format!("select {column}::text from oncely.dead_letters where key = $1");
        let found = ground.site.texts(&query, key).await?.into_iter().next();
        found.with_context(|| format!("no dead letter of {key}"))
    };
    Ok((one("id").await?, one("failure_group").await?))
}
