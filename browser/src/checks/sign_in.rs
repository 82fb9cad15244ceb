//! The one-time link.

use crate::ground::Ground;
use crate::look::Look;

pub(super) async fn once(ground: &Ground) -> anyhow::Result<()> {
    let link = ground.site.link.as_str();
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(link).await?;
    tab.until("location.pathname === '/' && document.querySelector('#tab-overview') !== null").await?;
    let is_told: bool = tab.ask("location.href.includes('token') || document.referrer.includes('token')").await?;
    anyhow::ensure!(!is_told, "the token is still in the address");
    let cookie: String = tab.ask("document.cookie").await?;
    anyhow::ensure!(cookie.is_empty(), "a script could read the session: {cookie}");
    let stranger = ground.chromium.strangers_tab(Look::DESK).await?;
    stranger.go(link).await?;
    stranger.until_says("main", "This link was used before").await?;
    anyhow::ensure!(stranger.count("#nav").await? == 0, "a stranger sees the pages");
    stranger.close().await?;
    tab.close().await
}
