//! Without a mouse.

use serde_json::json;

use super::flows::link_in_row;
use crate::ground::Ground;
use crate::look::Look;
use crate::seed::{TILLS, payments};
use crate::tab::Tab;

/// So many stops there may be before what somebody wants.
const STOPS: usize = 60;

pub(super) async fn requeues(ground: &Ground) -> anyhow::Result<()> {
    let site = &ground.site;
    let till = TILLS[2];
    let keys = payments(till);
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&site.url("/")).await?;
    // The first stop leads past the navigation.
    tab.press("Tab").await?;
    anyhow::ensure!(
        tab.ask::<bool>("document.activeElement.matches('a.skip')").await?,
        "no link past the navigation"
    );
    tab.press("Enter").await?;
    tab.until("document.activeElement.id === 'main'").await?;

    tab.go(&site.url("/")).await?;
    reach(&tab, "#tab-failed").await?;
    tab.enter().await?;
    let link = link_in_row(&tab, "#groups", &format!("till {till}"), "a[id^=requeue]").await?;
    reach(&tab, &link).await?;
    tab.enter().await?;
    tab.until_says("main", "3 dead letters").await?;
    site.unlock(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    reach(&tab, "#note").await?;
    tab.write("mended, by hand").await?;
    reach(&tab, "#typed").await?;
    tab.write("3").await?;
    reach(&tab, "form.stacked button.strong").await?;
    tab.enter().await?;
    tab.until_says("#verdict", "Done. 3 published of 3.").await?;
    let list = keys.iter().map(|key| format!("'{key}'")).collect::<Vec<_>>().join(", ");
    site.wait_for(&format!("select count(*) from shop.payments where key in ({list})"), 3).await?;
    let effects = site.effects(&keys).await?;
    anyhow::ensure!(effects == [1, 1, 1], "effects: {effects:?}");
    tab.close().await
}

/// Presses Tab until an element has the focus; each stop on the way must be seen.
async fn reach(tab: &Tab, selector: &str) -> anyhow::Result<()> {
    for _ in 0..STOPS {
        tab.press("Tab").await?;
        let (is_there, is_seen, what): (bool, bool, String) = tab
            .ask(&format!(
                "(() => {{
                    const element = document.activeElement;
                    const style = getComputedStyle(element);
                    const box = element.getBoundingClientRect();
                    const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 && box.width > 0 && box.height > 0
                        && box.bottom > 0 && box.top < innerHeight;
                    return [element.matches({}), seen, element.outerHTML.slice(0, 120)];
                }})()",
                json!(selector)
            ))
            .await?;
        anyhow::ensure!(is_seen, "the focus is not seen: {what}");
        if is_there {
            return Ok(());
        }
    }
    anyhow::bail!("{selector} is not within {STOPS} stops")
}

pub(super) async fn keeps_the_focus(ground: &Ground) -> anyhow::Result<()> {
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/failed")).await?;
    tab.ask::<Option<bool>>("void document.querySelector('#groups tbody a').focus()").await?;
    let focused: String = tab.ask("document.activeElement.id").await?;
    anyhow::ensure!(!focused.is_empty(), "a link without an id");
    for _ in 0..2 {
        tab.renewed().await?;
        let now: String = tab.ask("document.activeElement.id").await?;
        anyhow::ensure!(now == focused, "the focus went from {focused} to {now:?}");
    }
    // Who writes is not interrupted.
    tab.fill("#tenant", "acm").await?;
    tab.renewed().await?;
    tab.write("e").await?;
    let value: String = tab.ask("document.querySelector('#tenant').value").await?;
    anyhow::ensure!(value == "acme", "the field says {value:?}");
    tab.close().await
}
