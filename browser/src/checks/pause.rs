//! Pausing a consumer, and letting it go on.

use super::flows::{comes_to_say, link_in_row};
use crate::ground::Ground;
use crate::look::Look;
use crate::tab::Tab;

pub(super) async fn by_mouse(ground: &Ground) -> anyhow::Result<()> {
    pause(ground, Look::DESK, "ledger").await
}

pub(super) async fn without_scripts(ground: &Ground) -> anyhow::Result<()> {
    pause(ground, Look { scripts: false, ..Look::DESK }, "emails").await
}

async fn pause(ground: &Ground, look: Look, consumer: &str) -> anyhow::Result<()> {
    let site = &ground.site;
    let tab = ground.chromium.tab(look).await?;
    tab.go(&site.url("/consumers")).await?;
    let link = link_in_row(&tab, "#consumers", consumer, "a").await?;
    tab.follow(&link).await?;
    tab.until_says("#verdict", "running").await?;
    let why = format!("{consumer}: the year is closed");
    order(&tab, "pause", &why).await?;
    tab.until_says("#verdict", &why).await?;
    tab.until_says("#verdict", "paused").await?;

    // The worker obeys: what comes now waits in its queue.
    let obeys = format!(
        "select count(*) from oncely.processes as p, jsonb_array_elements(p.consumers) as c
         where c ->> 'consumer' = '{consumer}' and c ->> 'paused' is not null"
    );
    site.wait_for(&obeys, 1).await?;
    let key = format!("{consumer}-while-paused");
    site.publish(consumer, &[("acme", &key, r#"{"cents": 5}"#.to_owned())]).await?;
    comes_to_say(&tab, look.scripts, "#verdict", "paused").await?;
    let (ready, effects) = (site.ready(consumer).await?, site.effects(std::slice::from_ref(&key)).await?);
    anyhow::ensure!(ready == 1 && effects == [0], "{ready} ready, effects {effects:?}");

    order(&tab, "resume", &format!("{consumer}: it is closed")).await?;
    comes_to_say(&tab, look.scripts, "#verdict", "running").await?;
    site.wait_for(&format!("select count(*) from shop.payments where key = '{key}'"), 1).await?;
    let recorded = site.texts(
        "select verb from oncely.operator_actions where reason like $1 || ':%' order by occurred_at",
        consumer,
    );
    let recorded = recorded.await?;
    anyhow::ensure!(recorded.len() == 2, "recorded: {recorded:?}");
    tab.close().await
}

async fn order(tab: &Tab, what: &str, why: &str) -> anyhow::Result<()> {
    tab.fill(&format!("#{what}-reason"), why).await?;
    tab.follow(&format!("form[action$='/consumer/{what}'] button")).await
}
