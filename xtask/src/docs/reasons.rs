//! The reference of the reason codes, from the enum in `crates/core/src/reason.rs`.

use std::collections::BTreeMap;

use anyhow::Context as _;

use super::{cell, head};

pub(super) fn page(source: &str) -> anyhow::Result<String> {
    let (meanings, codes) = (meanings(source)?, codes(source)?);
    anyhow::ensure!(
        meanings.len() == codes.len(),
        "crates/core/src/reason.rs: {meanings:?} and {codes:?} differ"
    );
    let listed = all(source)?;
    let variants: Vec<&str> = meanings.iter().map(|(variant, _)| variant.as_str()).collect();
    anyhow::ensure!(
        listed == variants,
        "crates/core/src/reason.rs: the enum has {variants:?}, ALL has {listed:?}"
    );
    let mut page = head("Reason codes", "crates/core/src/reason.rs");
    page.push_str(
        "Why a message was dead-lettered: in the header `x-oncely-reason` of the dead letter, in `oncely.dead_letters.reason`, \
         `oncely.audit.reason` and\n`oncely.idempotency_keys.reason`. Codes are only added, never changed. Beside them `oncely.audit.reason` says who knew a \
         duplicate (`mirror`,\n`postgres`, `batch`), and a key that its handler refused has `refused`.\n\n\
         | code | meaning |\n| --- | --- |\n",
    );
    for (variant, meaning) in &meanings {
        let code = codes
            .get(variant)
            .with_context(|| format!("crates/core/src/reason.rs: {variant} has no code"))?;
        page.push_str(&format!("| `{code}` | {} |\n", cell(meaning)));
    }
    page.push_str(
        "\nWhat to do with dead letters: [handle dead letters](../how-to/dead-letters.md). Events that can't be published have \
         [reasons of their own](../how-to/events.md#when-the-broker-says-no).\n",
    );
    Ok(page)
}

/// Each variant with its doc comment, in the enum's order.
fn meanings(source: &str) -> anyhow::Result<Vec<(String, String)>> {
    let (_, body) = source
        .split_once("pub enum Reason {")
        .context("crates/core/src/reason.rs: there is no enum Reason")?;
    let (body, _) = body.split_once("\n}").context("crates/core/src/reason.rs: the enum does not end")?;
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if let Some(variant) = line.strip_suffix(',') {
            anyhow::ensure!(!comment.is_empty(), "crates/core/src/reason.rs: {variant} has no doc comment");
            found.push((variant.to_owned(), std::mem::take(&mut comment).trim().to_owned()));
        }
    }
    anyhow::ensure!(!found.is_empty(), "crates/core/src/reason.rs: the enum has no variants");
    Ok(found)
}

/// The variants of `ALL`, in its order.
fn all(source: &str) -> anyhow::Result<Vec<&str>> {
    let (_, body) =
        source.split_once("pub const ALL").context("crates/core/src/reason.rs: there is no ALL")?;
    let (body, _) = body.split_once("];").context("crates/core/src/reason.rs: ALL does not end")?;
    Ok(body.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.strip_suffix(',')).collect())
}

/// The codes of `as_str`.
fn codes(source: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let (_, body) =
        source.split_once("fn as_str(").context("crates/core/src/reason.rs: there is no as_str")?;
    let (body, _) = body.split_once("\n    }").context("crates/core/src/reason.rs: as_str does not end")?;
    let arms = body.lines().filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "));
    Ok(arms.map(|(variant, code)| (variant.to_owned(), code.trim_matches(['"', ',']).to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_get_their_comments_and_codes() {
        let source = "pub enum Reason {\n    /// Gone\n    /// for good.\n    Gone,\n}\n\
                      pub const ALL: &[Self] = &[\n        Self::Gone,\n    ];\n\
                      pub fn as_str(self) {\n        match self {\n            Self::Gone => \"gone\",\n        }\n    }\n";
        assert!(page(source).unwrap().contains("| `gone` | Gone for good. |"));
        assert!(page(&source.replace("Self::Gone =>", "Self::Lost =>")).is_err(), "a variant without a code");
        assert!(page(&source.replace("        Self::Gone,\n", "")).is_err(), "a variant that ALL lacks");
    }
}
