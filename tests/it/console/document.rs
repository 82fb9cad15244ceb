//! A page taken apart: its elements and their attributes, as far as they are well-formed.

use std::collections::{BTreeMap, BTreeSet};

/// An element's name and attributes, in the order of the page; with the text right behind its tag.
#[derive(Clone, Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) attributes: BTreeMap<String, String>,
    /// The elements round it, from the outermost on.
    pub(crate) within: Vec<String>,
}

impl Element {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// Those that have no end.
const VOID: [&str; 5] = ["input", "meta", "link", "br", "hr"];

/// All elements of a page.
///
/// # Panics
/// Where an element is not closed, or what is closed was not open.
pub(crate) fn elements(page: &str) -> Vec<Element> {
    let mut found = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap_or(page);
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = end_of_tag(rest);
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            assert_eq!(
                last.as_deref(),
                Some(name),
                "closed, but not open; before: {}",
                &rest[..rest.len().min(200)]
            );
            continue;
        }
        let (name, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "no element: <{tag}>");
        found.push(Element {
            name: name.to_owned(),
            attributes: attributes_of(attributes),
            within: open.clone(),
        });
        if !VOID.contains(&name) {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    found
}

fn end_of_tag(text: &str) -> usize {
    let mut in_quotes = false;
    for (at, character) in text.char_indices() {
        match character {
            '"' => in_quotes = !in_quotes,
            '>' if !in_quotes => return at,
            _ => {}
        }
    }
    panic!("a tag without an end: <{}", &text[..text.len().min(100)]);
}

fn attributes_of(mut text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    loop {
        text = text.trim_start();
        if text.is_empty() {
            return found;
        }
        let end = text.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(text.len());
        let name = text[..end].to_owned();
        text = &text[end..];
        let value = match text.strip_prefix("=\"") {
            Some(quoted) => {
                let (value, after) = quoted.split_once('"').expect("an end");
                text = after;
                plain(value)
            }
            None => String::new(),
        };
        assert!(found.insert(name.clone(), value).is_none(), "{name} twice");
    }
}

/// What a page says: all that stands outside of tags.
pub(crate) fn said(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        rest = &tag[end_of_tag(tag) + 1..];
    }
    plain(&text)
}

/// A text without its entities.
pub(crate) fn plain(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// What every page must be: well-formed, with one h1, unique ids, a name for each field, nothing inline.
pub(crate) fn check(path: &str, page: &str) -> Vec<Element> {
    let all = elements(page);
    let count = |name: &str| all.iter().filter(|element| element.name == name).count();
    assert_eq!((count("h1"), count("main"), count("title")), (1, 1, 1 + svg_titles(&all)), "{path}");
    let mut ids = BTreeSet::new();
    for id in all.iter().filter_map(|element| element.get("id")) {
        assert!(ids.insert(id), "{path}: the id {id} twice");
    }
    let labels: BTreeSet<&str> =
        all.iter().filter(|e| e.name == "label").filter_map(|label| label.get("for")).collect();
    for element in &all {
        let name = element.name.as_str();
        let is_field = ["input", "select", "textarea", "progress"].contains(&name)
            && element.get("type") != Some("hidden");
        if is_field {
            let is_named = element.get("id").is_some_and(|id| labels.contains(id))
                || element.get("aria-label").is_some();
            assert!(is_named, "{path}: a field without a label: {element:?}");
        }
        for attribute in element.attributes.keys() {
            assert!(
                !attribute.starts_with("on") && attribute != "style",
                "{path}: inline {attribute} in {element:?}"
            );
        }
        assert!(
            name != "style" && (name != "script" || element.get("src").is_some()),
            "{path}: inline {name}"
        );
        for reference in ["aria-labelledby", "for", "aria-describedby"] {
            if let Some(target) = element.get(reference) {
                assert!(ids.contains(target), "{path}: {reference} names {target}, which is not there");
            }
        }
        // Focus is kept over what is asked again by the id of what has it.
        let takes_focus = name == "a" && element.get("href").is_some();
        if takes_focus && element.within.iter().any(|outer| outer == "tbody") {
            assert!(element.get("id").is_some(), "{path}: a link in a row without an id: {element:?}");
        }
    }
    for table in all.iter().filter(|element| element.name == "table") {
        assert!(table.within.contains(&"main".to_owned()));
    }
    assert_eq!(count("table"), count("caption"), "{path}: a table without a caption");
    all
}

/// Titles of plots and of their points.
fn svg_titles(all: &[Element]) -> usize {
    all.iter()
        .filter(|element| element.name == "title" && element.within.iter().any(|outer| outer == "svg"))
        .count()
}
