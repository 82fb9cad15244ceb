//! Names that mean harm.

use std::collections::BTreeSet;

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
    let mut harm = BTreeSet::new();
    for (number, key) in hostile_keys().iter().enumerate() {
        let whose = [("tenant", HOSTILE_TENANT), ("consumer", "payments"), ("key", key.as_str())];
        // Found by the box, as somebody pastes it.
        tab.go(&site.url("/keys")).await?;
        let search = format!("key:\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        tab.go(&site.url(&path("/keys", &[("q", &search)]))).await?;
        tab.until("document.querySelectorAll('a[id^=known-]').length === 2").await?;
        harm.extend(harms(&tab).await?);
        tab.follow("#rows a[id$=-key]").await?;
        harm.extend(is_of(&tab, key).await?);
        tab.go(&site.url(&path("/key", &whose))).await?;
        harm.extend(is_of(&tab, key).await?);
        tab.follow("a[id^=letter-]").await?;
        harm.extend(harms(&tab).await?);
        tab.until_says("#live", &shown(key)).await?;
        tab.follow("a#key").await?;
        harm.extend(is_of(&tab, key).await?);
        let (id, _) = letter(ground, key).await?;
        for place in [
            path("/failed/plan", &[("change", "requeue"), ("id", &id)]),
            path("/failed/letters", &[("key", key)]),
            path("/failed", &[("key", key), ("tenant", HOSTILE_TENANT)]),
        ] {
            tab.go(&site.url(&place)).await?;
            harm.extend(harms(&tab).await?);
        }
        if number > 0 {
            continue;
        }
        // The message as it is: the same for all.
        tab.go(&site.url(&path("/failed/letter", &[("id", &id)]))).await?;
        tab.follow("form[action$='/failed/reveal'] button").await?;
        tab.until_says("main", "<i data-hostile>west</i>").await?;
        harm.extend(harms(&tab).await?);
    }
    for place in places(ground).await? {
        tab.go(&site.url(&place.path)).await?;
        harm.extend(harms(&tab).await?);
    }
    // What somebody asks for may mean harm, too.
    let question: String = url::form_urlencoded::byte_serialize(hostile_keys()[1].as_bytes()).collect();
    for place in [
        "/keys?q=",
        "/key?key=",
        "/consumer?name=",
        "/failed?consumer=",
        "/failed?reason=",
        "/outbox?reason=",
        "/failed?since=",
        "/?range=",
    ] {
        // Fetched and looked at as a document: what it answers with need not be a page.
        let url = site.url(&format!("{place}{question}"));
        let (status, markup): (u16, u64) = tab
            .ask(&format!(
                "fetch({}).then(async answer => [answer.status,
                    new DOMParser().parseFromString(await answer.text(), 'text/html').querySelectorAll('[data-hostile]').length])",
                json!(url)
            ))
            .await?;
        if status >= 500 || markup > 0 {
            harm.insert(format!("{place}: {status}, {markup} elements"));
        }
    }
    anyhow::ensure!(harm.is_empty(), "{}", harm.into_iter().collect::<Vec<_>>().join("\n  "));
    tab.close().await
}

/// Everything that is known of the key is on this page, and it is this key's. Returns what harm was done.
async fn is_of(tab: &Tab, key: &str) -> anyhow::Result<Vec<String>> {
    tab.until_says("h1", &shown(key)).await?;
    let asked: String = tab.ask("new URL(location).searchParams.get('key')").await?;
    anyhow::ensure!(asked == key, "the link to {key:?} leads to {asked:?}");
    tab.until("document.querySelector('.timeline li') !== null").await?;
    harms(tab).await
}

/// Whether a script of a message ran, whether something of it is markup, and what in it turns text round.
async fn harms(tab: &Tab) -> anyhow::Result<Vec<String>> {
    let (path, ran, markup, turned): (String, bool, u64, BTreeSet<String>) = tab
        .ask(
            "(() => {
                const turned = [];
                const hidden = /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200b\\u200c\\u200e\\u200f\\u202a-\\u202e\\u2060-\\u206f]/;
                const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
                while (walk.nextNode()) {
                    const { data, parentElement } = walk.currentNode;
                    if (hidden.test(data)) turned.push(`${parentElement.outerHTML.slice(0, 40)}: ${data.trim().slice(0, 60)}`);
                }
                for (const element of document.querySelectorAll('[title], [aria-label], option, [placeholder]'))
                    for (const name of ['title', 'aria-label', 'label', 'placeholder'])
                        if (hidden.test(element.getAttribute(name) ?? '')) turned.push(`<${element.localName} ${name}=>`);
                return [location.pathname, window.hostile !== undefined, document.querySelectorAll('[data-hostile]').length, turned];
            })()",
        )
        .await?;
    let mut harms: Vec<String> =
        turned.into_iter().map(|turned| format!("{path} has hidden signs in {turned:?}")).collect();
    if ran {
        harms.push(format!("{path} ran a script"));
    }
    if markup > 0 {
        harms.push(format!("{path} has elements of a message"));
    }
    Ok(harms)
}
