//! Pictures of pages: the book's, and all of them.

use std::path::Path;

use anyhow::Context as _;

use crate::ground::Ground;
use crate::look::Look;
use crate::places::places;

/// The book's: a page, where it is, and how much of it is shown.
const BOOK: [(&str, &str, u32); 4] = [
    ("overview", "/", 860),
    ("failed", "/failed?tenant=acme", 640),
    ("requeue", "/failed/plan?change=requeue&tenant=acme&consumer=payments&reason=attempts_exhausted", 720),
    ("key", "/key?tenant=acme&consumer=payments&key=order-1001", 780),
];

/// Gives pages something to show that takes longer than anybody wants to wait: an hour of work, and a consumer that somebody has paused.
pub(crate) async fn prepare(ground: &Ground) -> anyhow::Result<()> {
    ground.site.execute(include_str!("history.sql")).await?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/consumer?name=emails")).await?;
    tab.fill("#pause-reason", "the mail provider moves tonight").await?;
    tab.follow("form[action$='/consumer/pause'] button").await?;
    tab.close().await
}

/// The book's pictures.
pub(crate) async fn book(ground: &Ground, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    for (name, path, height) in BOOK {
        tab.go(&ground.site.url(path)).await?;
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
