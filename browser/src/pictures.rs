//! Pictures of pages: the book's, and all of them.

use std::path::Path;

use anyhow::Context as _;

use crate::ground::Ground;
use crate::look::Look;
use crate::places::places;

/// The book's: a page, and how much of it is shown.
const BOOK: [(&str, u32); 4] = [("overview", 800), ("failed", 560), ("plan", 700), ("key", 640)];

/// The book's pictures.
pub(crate) async fn book(ground: &Ground, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let tab = ground.chromium.tab(Look::DESK).await?;
    let places = places(ground).await?;
    tab.to_front().await?;
    for (name, height) in BOOK {
        let place = places.iter().find(|place| place.name == name).with_context(|| name.to_owned())?;
        tab.go(&ground.site.url(&place.path)).await?;
        tab.picture(&folder.join(format!("{name}.png")), Some(height)).await?;
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
            tab.picture(&folder.join(format!("{}-{}.png", place.name, look.name())), None).await?;
        }
        tab.close().await?;
    }
    Ok(())
}
