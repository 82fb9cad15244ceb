//! Steps that several checks take.

use serde_json::json;
use testbed::eventually;

use crate::tab::Tab;

/// The link in a table's row that says `words`, as a selector that stays good when rows move.
pub(super) async fn link_in_row(tab: &Tab, table: &str, words: &str, link: &str) -> anyhow::Result<String> {
    let found = format!(
        "(Array.from(document.querySelectorAll({} + ' tbody tr')).find(row => row.textContent.includes({}))
            ?.querySelector({})?.getAttribute('href')) ?? null",
        json!(table),
        json!(words),
        json!(link)
    );
    let what = format!("{link} in the row of {table} with {words}");
    let href = eventually(&what, || async {
        match tab.ask::<Option<String>>(&found).await {
            Ok(Some(href)) => Ok(href),
            Ok(None) => Err("there is none".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(format!("{table} a[href={}]", json!(href.await?)))
}

/// Waits until an element says something; whoever has no scripts loads the page again for it.
pub(super) async fn comes_to_say(
    tab: &Tab,
    scripts: bool,
    selector: &str,
    words: &str,
) -> anyhow::Result<()> {
    if scripts {
        return tab.until_says(selector, words).await;
    }
    let url = tab.url().await?;
    eventually(words, || async {
        let seen = async {
            tab.go(&url).await?;
            tab.text(selector).await
        };
        match seen.await {
            Ok(text) if text.contains(words) => Ok(()),
            Ok(text) => Err(text),
            Err(error) => Err(format!("{error:#}")),
        }
    })
    .await
}
