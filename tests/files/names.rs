//! Names of types: each is defined once and is a noun; the glossary stays short.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::sources::{sources, statements};

/// Names that two files define. `Run` of `http` is an alias of the one of `lease`; `traces/off.rs` has the empty twins that stand where the feature
/// `otel` is off. This list may only shrink.
const TWICE: [&str; 7] =
    ["BatchTrace", "ConsumerTraces", "EventTraces", "MessageTrace", "Run", "SettledMessage", "Traces"];

/// Nouns that end like a participle.
const NOUNS: [&str; 4] = ["Finding", "Meaning", "Ring", "Seed"];

/// Participles and adjectives without such an ending.
const IRREGULAR: [&str; 29] = [
    "Said", "Told", "Held", "Taken", "Seen", "Found", "Begun", "Came", "Kept", "Left", "Made", "Sent",
    "Shown", "Swept", "Ran", "Known", "Gone", "Away", "Alone", "Due", "Idle", "Open", "Own", "Given",
    "Written", "Chosen", "Broken", "Lost", "Bound",
];

/// Names of types that a file of the product defines outside of functions and traits, and the files.
fn types() -> BTreeMap<String, BTreeSet<String>> {
    let definition =
        Regex::new(r"(?m)^(?:pub(?:\([a-z]+\))? )?(?:struct|enum|trait|type|union) (\w+)").unwrap();
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources() {
        for name in definition.captures_iter(&statements(&path)) {
            found.entry(name[1].to_owned()).or_default().insert(path.display().to_string());
        }
    }
    assert!(found.len() > 700, "{}", found.len());
    found
}

#[test]
fn no_type_name_is_defined_twice() {
    let twice: BTreeMap<_, _> = types().into_iter().filter(|(_, files)| files.len() > 1).collect();
    let unlisted: Vec<_> = twice.iter().filter(|(name, _)| !TWICE.contains(&name.as_str())).collect();
    assert!(unlisted.is_empty(), "{unlisted:#?}");
    let gone: Vec<_> = TWICE.iter().filter(|name| !twice.contains_key(**name)).collect();
    assert!(gone.is_empty(), "take {gone:?} off the list");
}

#[test]
fn no_type_is_a_bare_participle() {
    let is_one_word = |name: &str| name.chars().filter(|c| c.is_uppercase()).count() == 1;
    let bare: Vec<String> = types()
        .into_keys()
        .filter(|name| is_one_word(name) && !NOUNS.contains(&name.as_str()))
        .filter(|name| name.ends_with("ed") || name.ends_with("ing") || IRREGULAR.contains(&name.as_str()))
        .collect();
    assert_eq!(bare, Vec::<String>::new());
}

#[test]
fn the_glossary_has_at_most_sixty_nouns() {
    let map = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md")).unwrap();
    let glossary = map.split("\n## Glossary\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let nouns = glossary.lines().filter(|line| line.starts_with("| ")).count() - 2;
    assert!((30..=60).contains(&nouns), "{nouns}");
}
