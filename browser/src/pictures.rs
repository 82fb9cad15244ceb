//! Pictures of pages: the book's, and all of them.

use std::path::Path;

use anyhow::Context as _;

use crate::ground::Ground;
use crate::look::Look;
use crate::places::places;

/// The book's: which page, what the picture is called, and how much of the page it shows.
const BOOK: [(&str, &str, u32); 4] = [
    ("overview", "overview", 900),
    ("failed-of-one", "failed", 720),
    ("plan", "requeue", 690),
    ("key", "key", 800),
];

/// Gives pages something to show that takes longer than anybody wants to wait: an hour of work, and a consumer that somebody has paused.
pub(crate) async fn prepare(ground: &Ground) -> anyhow::Result<()> {
    ground.site.execute(include_str!("history.sql")).await?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/consumer?name=emails")).await?;
    tab.fill("#pause-reason", "the mail provider moves tonight").await?;
    tab.follow("form[action$='/consumer/pause'] button").await?;
    // Plots are drawn anew after a while.
    tab.go(&ground.site.url("/")).await?;
    tab.until("!document.querySelector('#plots figure .legend').textContent.includes('done 0')").await?;
    tab.close().await
}

/// The book's pictures.
pub(crate) async fn book(ground: &Ground, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    let places = places(ground).await?;
    tab.to_front().await?;
    for (page, name, height) in BOOK {
        let place = places.iter().find(|place| place.name == page).with_context(|| page.to_owned())?;
        tab.go(&ground.site.url(&place.path)).await?;
        tab.resize(Look::DESK.width, height).await?;
        tab.picture(&folder.join(format!("{name}.png"))).await?;
    }
    tab.close().await
}

/// Every page in every look.
pub(crate) async fn gallery(ground: &Ground, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let places = places(ground).await?;
    for look in Look::ALL {
        let tab = ground.chromium.tab(look).await?;
        for place in &places {
            tab.go(&ground.site.url(&place.path)).await?;
            // As high as the page is.
            let height: u32 = tab.ask("document.documentElement.scrollHeight").await?;
            tab.resize(look.width, height).await?;
            tab.picture(&folder.join(format!("{}-{}.png", place.name, look.name()))).await?;
            tab.look(look).await?;
        }
        tab.close().await?;
    }
    Ok(())
}
