//! From a search to a key.

use crate::ground::Ground;
use crate::look::Look;

pub(super) async fn by_mouse(ground: &Ground) -> anyhow::Result<()> {
    search(ground, Look::DESK).await
}

pub(super) async fn without_scripts(ground: &Ground) -> anyhow::Result<()> {
    search(ground, Look { scripts: false, ..Look::DESK }).await
}

async fn search(ground: &Ground, look: Look) -> anyhow::Result<()> {
    let tab = ground.chromium.tab(look).await?;
    tab.go(&ground.site.url("/")).await?;
    tab.follow("#tab-keys").await?;
    tab.fill("#q", "order-1001").await?;
    tab.enter().await?;
    let found = tab.url().await?;
    anyhow::ensure!(found.ends_with("/keys?q=order-1001"), "the search is not the address: {found}");
    tab.until("document.querySelectorAll('a[id^=known-]').length === 3").await?;
    tab.follow("a[id^=known-][href*=payments]").await?;
    tab.until_says("h1", "order-1001").await?;
    // It took effect, came again, and came with another payload.
    let story: Vec<String> = tab
        .ask("Array.from(document.querySelectorAll('.timeline .outcome'), e => e.textContent.trim())")
        .await?;
    let expected = ["completed", "duplicate", "dead_lettered"];
    let is_told =
        story.len() == 3 && story.iter().zip(expected).all(|(told, outcome)| told.ends_with(outcome));
    anyhow::ensure!(is_told, "{story:?}");
    tab.until_says(".timeline", "key_conflict").await?;
    tab.back().await?;
    let value: String = tab.ask("document.querySelector('#q').value").await?;
    anyhow::ensure!(
        tab.url().await? == found && value == "order-1001",
        "back leads to {} with {value}",
        tab.url().await?
    );
    // A facet narrows it down, and the box says so.
    tab.go(&ground.site.url("/keys")).await?;
    tab.follow("nav.facets a[href*='outcome%3Arefused']").await?;
    let outcomes: Vec<String> =
        tab.ask("Array.from(document.querySelectorAll('#rows .outcome'), e => e.textContent.trim())").await?;
    anyhow::ensure!(
        !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.ends_with("refused")),
        "{outcomes:?}"
    );
    tab.close().await
}
