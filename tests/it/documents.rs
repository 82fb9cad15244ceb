//! What the documents name is there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| line.split("fn ").nth(1)?.split('(').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

/// Texts between backticks that look like a test's name: a sentence in one word.
fn named(text: &str) -> BTreeSet<&str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.matches('_').count() >= 4
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

#[test]
fn every_test_that_proves_a_failure_mode_is_there() {
    let mut there = BTreeSet::new();
    for folder in ["tests", "testbed/tests", "src"] {
        functions(&root().join(folder), &mut there);
    }
    let text = std::fs::read_to_string(root().join("docs/src/explanation/failure-modes.md")).unwrap();
    let named = named(&text);
    assert!(named.len() > 40, "{}", named.len());
    let gone: Vec<_> = named.into_iter().filter(|name| !there.contains(*name)).collect();
    assert!(gone.is_empty(), "docs/src/explanation/failure-modes.md names tests that are not there: {gone:?}");
}

#[test]
fn every_proof_that_a_cell_names_is_listed() {
    let text = std::fs::read_to_string(root().join("docs/src/explanation/failure-modes.md")).unwrap();
    let (cells, list) = text.split_once("## The tests").unwrap();
    let marks = |text: &str| -> BTreeSet<String> {
        text.split('[')
            .skip(1)
            .filter_map(|rest| rest.split_once(']'))
            .map(|(mark, _)| mark.to_owned())
            .filter(|mark| mark.len() <= 2)
            .collect()
    };
    let (used, listed) = (marks(cells), marks(list));
    assert_eq!(used, listed, "cells and list name the same proofs");
}
