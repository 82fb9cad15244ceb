//! A tab that nobody sees.

use testbed::eventually;

use crate::ground::Ground;
use crate::look::Look;
use crate::tab::Tab;

/// Twice as long as pages wait between two questions, and some more.
const LONG: u32 = 11_000;

pub(super) async fn asks_for_nothing(ground: &Ground) -> anyhow::Result<()> {
    // The trail is followed, too: one question after the other, and one connection that stays.
    let tab = ground.chromium.tab(Look::DESK).await?;
    tab.go(&ground.site.url("/keys")).await?;
    asks(&tab, "/keys", 2).await?;
    tab.click("#follow").await?;
    asks(&tab, "/keys/tail", 1).await?;

    let other = ground.chromium.tab(Look::DESK).await?;
    tab.until("document.visibilityState === 'hidden'").await?;
    // All that was begun ends; nothing begins.
    let (before, _) = quiet(&tab).await?;
    // By the page's own clock, which is the one that it asks by.
    tab.ask::<Option<bool>>(&format!("new Promise(done => setTimeout(() => done(null), {LONG}))")).await?;
    let (after, over) = tab.traffic();
    anyhow::ensure!(
        after.len() == before && over == before,
        "hidden, it asked for {:?}; {over} of {} are over",
        &after[before..],
        after.len()
    );

    tab.to_front().await?;
    tab.until("document.visibilityState === 'visible'").await?;
    let later = |part: &'static str| {
        let tab = &tab;
        async move {
            eventually(part, || async {
                let (urls, _) = tab.traffic();
                urls[before..].iter().any(|url| path(url) == part).then_some(()).ok_or(urls.len())
            })
            .await
        }
    };
    later("/keys").await?;
    later("/keys/tail").await?;
    other.close().await?;
    tab.close().await
}

fn path(url: &str) -> String {
    url::Url::parse(url).map(|url| url.path().to_owned()).unwrap_or_default()
}

/// Waits until a path was asked for so often.
async fn asks(tab: &Tab, wanted: &str, times: usize) -> anyhow::Result<()> {
    eventually(wanted, || async {
        let (urls, _) = tab.traffic();
        let found = urls.iter().filter(|url| path(url) == wanted).count();
        if found >= times { Ok(()) } else { Err(found) }
    })
    .await
}

/// Waits until all requests are over; how many there were.
async fn quiet(tab: &Tab) -> anyhow::Result<(usize, usize)> {
    eventually("all requests of the hidden tab are over", || async {
        let (urls, over) = tab.traffic();
        if urls.len() == over { Ok((urls.len(), over)) } else { Err((urls.len(), over)) }
    })
    .await
}
