//! A telephone's screen.

use crate::ground::Ground;
use crate::look::Look;
use crate::places::places;
use crate::seed::{HOSTILE_TENANT, hostile_keys};
use crate::site::path;

pub(super) async fn fits(ground: &Ground) -> anyhow::Result<()> {
    let tab = ground.chromium.tab(Look { width: 360, ..Look::DESK }).await?;
    let mut paths: Vec<String> = places(ground).await?.into_iter().map(|place| place.path).collect();
    // The longest key, and the one with no place to break at.
    for key in hostile_keys() {
        paths.push(path("/key", &[("tenant", HOSTILE_TENANT), ("consumer", "payments"), ("key", &key)]));
        paths.push(path("/failed/letters", &[("key", &key)]));
    }
    let mut wide = Vec::new();
    for path in paths {
        tab.go(&ground.site.url(&path)).await?;
        // Which element is to blame: one that sticks out, and is in nothing that scrolls by itself.
        let (scrolls, blamed): (bool, Vec<String>) = tab
            .ask(
                "(() => {
                    const page = document.documentElement;
                    const blamed = Array.from(document.querySelectorAll('body *')).filter(element => {
                        const clips = parent => parent && (getComputedStyle(parent).overflowX !== 'visible' || clips(parent.parentElement));
                        return element.getBoundingClientRect().right > page.clientWidth + 1 && !clips(element.parentElement);
                    });
                    return [page.scrollWidth > page.clientWidth, blamed.slice(0, 3).map(element => element.outerHTML.slice(0, 100))];
                })()",
            )
            .await?;
        if scrolls {
            wide.push(format!("{path}: {blamed:?}"));
        }
    }
    anyhow::ensure!(wide.is_empty(), "{}", wide.join("\n  "));
    tab.close().await
}

/// Every page's name, and what can be done about a group, are on the screen: nothing that only a sideways scroll would show.
pub(super) async fn shows_what_can_be_done(ground: &Ground) -> anyhow::Result<()> {
    let tab = ground.chromium.tab(Look { width: 360, ..Look::DESK }).await?;
    tab.go(&ground.site.url("/failed")).await?;
    let (seen, hidden): (usize, Vec<String>) = tab
        .ask(
            "(() => {
                const wanted = Array.from(document.querySelectorAll('#nav a, #groups td.do a'));
                const wide = document.documentElement.clientWidth;
                const hidden = wanted.filter(element => {
                    const box = element.getBoundingClientRect();
                    return box.left < 0 || box.right > wide + 1;
                });
                return [wanted.length, hidden.map(element => element.outerHTML.slice(0, 100))];
            })()",
        )
        .await?;
    anyhow::ensure!(seen > 7 && hidden.is_empty(), "{seen} links, and off the screen: {}", hidden.join("\n  "));
    tab.close().await
}
