//! Names that mean harm.

use serde_json::json;

use crate::ground::Ground;
use crate::look::Look;
use crate::places::{letter, places};
use crate::seed::{HOSTILE_TENANT, hostile_keys, shown};
use crate::site::path;
use crate::tab::Tab;

pub(super) async fn is_text(ground: &Ground) -> anyhow::Result<()> {
    let site = &ground.site;
    let tab = ground.chromium.tab(Look::DESK).await?;
    for key in &hostile_keys() {
        let whose = [("tenant", HOSTILE_TENANT), ("consumer", "payments"), ("key", key.as_str())];
        // Found by the box, as somebody pastes it.
        tab.go(&site.url("/keys")).await?;
        let search = format!("key:{}", json!(key));
        tab.go(&site.url(&path("/keys", &[("q", &search)]))).await?;
        tab.until("document.querySelectorAll('a[id^=known-]').length === 2").await?;
        harmless(&tab, key).await?;
        tab.follow("#rows a[id$=-key]").await?;
        is_of(&tab, key).await?;
        tab.go(&site.url(&path("/key", &whose))).await?;
        is_of(&tab, key).await?;
        tab.follow("a[id^=letter-]").await?;
        harmless(&tab, key).await?;
        tab.until_says("#live", &shown(key)).await?;
        tab.follow("a#key").await?;
        is_of(&tab, key).await?;
        let (id, _) = letter(ground, key).await?;
        for place in [
            path("/failed/plan", &[("change", "requeue"), ("id", &id)]),
            path("/failed/letters", &[("key", key)]),
            path("/failed", &[("key", key), ("tenant", HOSTILE_TENANT)]),
        ] {
            tab.go(&site.url(&place)).await?;
            harmless(&tab, key).await?;
        }
        // The message as it is.
        tab.go(&site.url(&path("/failed/letter", &[("id", &id)]))).await?;
        tab.follow("form[action$='/failed/reveal'] button").await?;
        tab.until_says("main", "<i data-hostile>west</i>").await?;
        harmless(&tab, key).await?;
    }
    for place in places(ground).await? {
        tab.go(&site.url(&place.path)).await?;
        harmless(&tab, place.name).await?;
    }
    // What somebody asks for may mean harm, too.
    for place in ["/keys?q=", "/key?key=", "/consumer?name=", "/failed?consumer=", "/failed?reason=", "/outbox?reason=", "/failed?since=", "/?range="] {
        let harm = hostile_keys()[1].clone();
        let query: String = url::form_urlencoded::byte_serialize(harm.as_bytes()).collect();
        let answer: u16 = tab
            .ask(&format!("fetch({}).then(answer => answer.status)", json!(site.url(&format!("{place}{query}")))))
            .await?;
        anyhow::ensure!(answer < 500, "{place}: {answer}");
    }
    tab.close().await
}

/// Everything that is known of the key is on this page, and it is this key's.
async fn is_of(tab: &Tab, key: &str) -> anyhow::Result<()> {
    harmless(tab, key).await?;
    tab.until_says("h1", &shown(key)).await?;
    let asked: String = tab.ask("new URL(location).searchParams.get('key')").await?;
    anyhow::ensure!(asked == key, "the link to {key:?} leads to {asked:?}");
    tab.until("document.querySelector('.timeline li') !== null").await
}

/// No script of a message ran, nothing of it is markup, and nothing in it turns text round.
async fn harmless(tab: &Tab, what: &str) -> anyhow::Result<()> {
    let (ran, markup, turned): (bool, u64, Vec<String>) = tab
        .ask(
            "(() => {
                const turned = [];
                const hidden = /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200b-\\u200c\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f]/;
                const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
                while (walk.nextNode()) if (hidden.test(walk.currentNode.data)) turned.push(walk.currentNode.data.trim().slice(0, 80));
                for (const element of document.querySelectorAll('[title], [aria-label], option'))
                    for (const name of ['title', 'aria-label', 'label'])
                        if (hidden.test(element.getAttribute(name) ?? '')) turned.push(name + '=' + element.getAttribute(name));
                return [window.hostile !== undefined, document.querySelectorAll('[data-hostile]').length, turned];
            })()",
        )
        .await?;
    let url = tab.url().await?;
    anyhow::ensure!(!ran, "{what}: a script ran on {url}");
    anyhow::ensure!(markup == 0, "{what}: {markup} elements on {url}");
    anyhow::ensure!(turned.is_empty(), "{what}: hidden signs on {url}: {turned:?}");
    Ok(())
}
