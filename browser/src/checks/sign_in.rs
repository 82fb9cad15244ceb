//! The one-time link.

use crate::ground::Ground;
use crate::look::Look;

pub(super) async fn once(ground: &Ground) -> anyhow::Result<()> {
    let link = ground.site.link.as_str();
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(link).await?;
    tab.until("document.activeElement.id === 'come-in'").await?;
    tab.enter().await?;
    tab.until("location.pathname === '/' && document.querySelector('#tab-overview') !== null").await?;
    let address: String = tab.ask("location.href + ' ' + document.referrer").await?;
    anyhow::ensure!(!address.contains("token"), "the page still names the token: {address}");
    let cookie: String = tab.ask("document.cookie").await?;
    anyhow::ensure!(cookie.is_empty(), "a script could read the session: {cookie}");
    let stranger = ground.chromium.strangers_tab(Look::DESK).await?;
    stranger.go(link).await?;
    stranger.follow("#come-in").await?;
    stranger.until_says("main", "This link was used before").await?;
    anyhow::ensure!(stranger.count("#nav").await? == 0, "a stranger sees the pages");
    stranger.close().await?;
    tab.close().await
}
