//! The runbooks, and what else names alerts.

use std::collections::{BTreeMap, BTreeSet};

use super::{between, read, rules};
use crate::support::World;

const PAGE: &str = "docs/src/how-to/runbooks.md";
/// What stands in alerts.yml for wherever somebody puts the book.
const BOOK: &str = "https://oncely.example/book/";
const PARTS: [&str; 6] = [
    "**What it means.**",
    "**Is data at risk?**",
    "**Look.**",
    "**Do.**",
    "**It is over when**",
    "**Never.**",
];

/// The page's sections, by the alert that each is about.
fn sections(page: &str) -> BTreeMap<&str, &str> {
    let sections = page.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.filter(|(title, _)| title.starts_with("Oncely")).collect()
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_its_alert() {
    let page = read(PAGE);
    let sections = sections(&page);
    let rules = rules::rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(alerts, sections.keys().copied().collect(), "alerts, and sections of {PAGE}");
    for rule in &rules {
        let url = &rule.annotations["runbook_url"];
        // What mdBook and code hosts make of the title.
        let place = format!("{BOOK}how-to/runbooks.html#{}", rule.alert.to_lowercase());
        assert_eq!(*url, place, "{}", rule.alert);
    }
    for (alert, section) in sections {
        let parts: Vec<Option<usize>> = PARTS.iter().map(|part| section.find(part)).collect();
        assert!(
            parts.iter().all(Option::is_some) && parts.is_sorted(),
            "{alert} has {PARTS:?}, in this order"
        );
    }
}

#[test]
fn every_alert_that_is_named_is_there() {
    let rules = rules::rules();
    let alerts: BTreeSet<&str> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    for file in [
        PAGE,
        "docs/src/how-to/monitor.md",
        "docs/src/how-to/operate.md",
        "dashboards/oncely.json",
        "alerts.yml",
    ] {
        let text = read(file);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        let is_alert = |word: &&str| {
            word.strip_prefix("Oncely")
                .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_uppercase()))
        };
        let unknown: Vec<&str> = words.filter(is_alert).filter(|word| !alerts.contains(word)).collect();
        assert!(unknown.is_empty(), "{file} names alerts that are not there: {unknown:?}");
    }
    // What people are told to replace is what is there.
    assert!(read("docs/src/how-to/monitor.md").contains(BOOK.trim_end_matches('/')));
}

#[tokio::test]
async fn the_sql_of_the_runbooks_runs() {
    let mut world = World::new().await;
    let page = read(PAGE);
    let blocks = between(&page, "```sql\n", "```");
    assert!(blocks.len() >= 2, "{}", blocks.len());
    for sql in blocks {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut world.sql).await.expect(sql);
    }
}
