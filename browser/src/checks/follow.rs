//! The trail, as it grows.

use crate::ground::Ground;
use crate::look::Look;
use crate::tab::Tab;

pub(super) async fn tells(ground: &Ground) -> anyhow::Result<()> {
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/keys")).await?;
    happens(ground, "before-it-is-followed").await?;
    tab.renewed().await?;
    tab.click("#follow").await?;
    tab.until("document.querySelector('#follow').getAttribute('aria-pressed') === 'true'").await?;
    // With a page that is renewed meanwhile.
    happens(ground, "while-it-is-followed").await?;
    tab.renewed().await?;
    // And by the trail alone: nothing is asked for any more.
    tab.click("#pause").await?;
    happens(ground, "and-after").await?;
    for key in ["before-it-is-followed", "while-it-is-followed", "and-after"] {
        tab.until_says("#rows", key).await?;
        let rows: usize = tab
            .ask(&format!("document.querySelector('#rows').textContent.split('{key}').length - 1"))
            .await?;
        anyhow::ensure!(rows == 1, "{key} stands there {rows} times");
    }
    is_first(&tab, "and-after").await?;
    tab.close().await
}

/// Something takes effect.
async fn happens(ground: &Ground, key: &str) -> anyhow::Result<()> {
    ground.site.publish("ledger", &[("acme", key, r#"{"cents": 3}"#.to_owned())]).await?;
    ground.site.wait_for(&format!("select count(*) from shop.payments where key = '{key}'"), 1).await
}

async fn is_first(tab: &Tab, key: &str) -> anyhow::Result<()> {
    let first: String = tab.ask("document.querySelector('#rows tr').textContent").await?;
    anyhow::ensure!(first.contains(key), "the newest stands first: {first}");
    Ok(())
}
