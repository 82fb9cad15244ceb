//! From a failed group to its effects.

use super::flows::{comes_to_say, link_in_row};
use crate::ground::Ground;
use crate::look::Look;
use crate::seed::{TILLS, payments};
use crate::site::Site;
use crate::tab::Tab;

/// The buttons on a page that do something by scripts alone, where they are seen.
const SHOWN_FOR_SCRIPTS: &str = "Array.from(document.querySelectorAll('button[type=button]')).filter(one => one.checkVisibility()).map(one => one.outerHTML)";

pub(super) async fn by_mouse(ground: &Ground) -> anyhow::Result<()> {
    requeue(ground, Look::DESK, TILLS[0]).await
}

pub(super) async fn without_scripts(ground: &Ground) -> anyhow::Result<()> {
    requeue(ground, Look { scripts: false, ..Look::DESK }, TILLS[1]).await
}

async fn requeue(ground: &Ground, look: Look, till: &str) -> anyhow::Result<()> {
    let site = &ground.site;
    let keys = payments(till);
    let tab = ground.chromium.tab(look).await?;
    tab.go(&site.url("/")).await?;
    anyhow::ensure!(tab.ask::<bool>("window.htmx !== undefined").await? == look.scripts, "scripts: {look:?}");
    let buttons: Vec<String> = tab.ask(SHOWN_FOR_SCRIPTS).await?;
    anyhow::ensure!(buttons.is_empty() != look.scripts, "what only scripts can do is offered: {buttons:?}");
    tab.follow("#tab-failed").await?;
    let link = link_in_row(&tab, "#groups", &format!("till {till}"), "a[id^=requeue]").await?;
    tab.follow(&link).await?;
    tab.until_says("main", "3 dead letters").await?;

    // A number that is not the one does nothing.
    order(&tab, till, "2").await?;
    tab.until_says("[role=alert]", "Nothing was changed").await?;
    let waiting = waiting(site, till).await?;
    anyhow::ensure!(waiting == 3, "{waiting} wait");

    // The third one stays broken.
    site.unlock(&[&keys[0], &keys[1]]).await?;
    order(&tab, till, "3").await?;
    tab.until_says("#verdict", "Under way.").await?;
    let page = tab.url().await?;
    comes_to_say(&tab, look.scripts, "#verdict", "Done. 3 published of 3.").await?;
    comes_to_say(&tab, look.scripts, "#live", "Came back: 1 of 3.").await?;
    anyhow::ensure!(tab.url().await? == page, "the page went away");
    let effects = site.effects(&keys).await?;
    anyhow::ensure!(effects == [1, 1, 0], "effects: {effects:?}");
    let recorded = "select sum(count)::text || ' by ' || string_agg(distinct actor, ', ') from oncely.operator_actions where reason = $1";
    let recorded = site.texts(recorded, &why(till)).await?;
    anyhow::ensure!(
        matches!(&recorded[..], [one] if one.starts_with("3 by ") && one.contains("ana")),
        "recorded: {recorded:?}"
    );

    // What came back stands in its group again, as what came back.
    tab.follow("#tab-failed").await?;
    comes_to_say(&tab, look.scripts, "#live", &format!("till {till}")).await?;
    let row = format!(
        "Array.from(document.querySelectorAll('#groups tbody tr')).some(row => row.textContent.includes('till {till}') && row.textContent.includes('1 of 3'))"
    );
    tab.until(&row).await?;
    tab.close().await
}

fn why(till: &str) -> String {
    format!("the till {till} was mended")
}

/// Orders it on the plan's page, one letter a second.
async fn order(tab: &Tab, till: &str, typed: &str) -> anyhow::Result<()> {
    tab.fill("#note", &why(till)).await?;
    tab.fill("#rate", "1").await?;
    tab.fill("#typed", typed).await?;
    tab.follow("form.stacked button.strong").await
}

async fn waiting(site: &Site, till: &str) -> anyhow::Result<usize> {
    let query = "select key from oncely.dead_letters where state = 'waiting' and key like $1 || '-%'";
    Ok(site.texts(query, till).await?.len())
}
