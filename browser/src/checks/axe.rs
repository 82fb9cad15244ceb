//! What axe-core finds.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;

use crate::ground::Ground;
use crate::look::Look;
use crate::places::places;

/// A rule that is broken.
#[derive(Debug, Deserialize)]
struct Violation {
    id: String,
    impact: Option<String>,
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    html: String,
    #[serde(rename = "failureSummary")]
    summary: Option<String>,
}

pub(super) async fn finds_nothing(ground: &Ground) -> anyhow::Result<()> {
    let axe = std::fs::read_to_string(&ground.axe).with_context(|| ground.axe.display().to_string())?;
    // Not left as what the expression comes to.
    let axe = format!("{axe};0");
    let tab = ground.chromium.tab(Look::DESK).await?;
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for look in [Look::DESK, Look { dark: true, ..Look::DESK }, Look { width: 360, ..Look::DESK }] {
        tab.look(look).await?;
        for place in places(ground).await? {
            tab.to_front().await?;
            tab.go(&ground.site.url(&place.path)).await?;
            // What can be opened is looked at, too.
            tab.ask::<Option<bool>>(
                "void document.querySelectorAll('details').forEach(one => one.open = true)",
            )
            .await?;
            tab.ask::<u8>(&axe).await?;
            let violations: Vec<Violation> = tab
                .ask("axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations)")
                .await?;
            anyhow::ensure!(tab.ask::<bool>("axe.getRules().length > 50").await?, "axe-core has no rules");
            for violation in violations {
                let impact = violation.impact.unwrap_or_default();
                if matches!(impact.as_str(), "serious" | "critical") {
                    let node = violation.nodes.first();
                    let told = node
                        .map(|node| format!("{} {}", node.html, node.summary.as_deref().unwrap_or_default()))
                        .unwrap_or_default();
                    found
                        .entry(format!("{} ({impact}) on {} at {}", violation.id, place.name, look.name()))
                        .or_insert(told);
                }
            }
        }
    }
    let list: Vec<String> = found.into_iter().map(|(what, where_)| format!("{what}: {where_}")).collect();
    anyhow::ensure!(list.is_empty(), "{}", list.join("\n  "));
    tab.close().await
}
