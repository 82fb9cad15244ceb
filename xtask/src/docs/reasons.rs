//! The reference of the reason codes, from the enum in `crates/core/src/reason.rs`.

use anyhow::Context as _;

use super::{cell, head};

pub(super) fn page(source: &str) -> anyhow::Result<String> {
    let mut page = head("Reason codes", "crates/core/src/reason.rs");
    page.push_str(
        "Why a message was dead-lettered: in the header `x-oncely-reason` of the dead letter, in `oncely.dead_letters.reason`, \
         `oncely.audit.reason` and\n`oncely.idempotency_keys.reason`. Codes are only added, never changed. Beside them `oncely.audit.reason` says who knew a \
         duplicate (`mirror`,\n`postgres`, `batch`), and a key that its handler refused has `refused`.\n\n\
         | code | meaning |\n| --- | --- |\n",
    );
    for (code, meaning) in reasons(source)? {
        page.push_str(&format!("| `{code}` | {} |\n", cell(&meaning)));
    }
    page.push_str(
        "\nWhat to do with dead letters: [handle dead letters](../how-to/dead-letters.md). Events that can't be published have \
         [reasons of their own](../how-to/events.md#when-the-broker-says-no).\n",
    );
    Ok(page)
}

/// Each variant's code with its doc comment, in the enum's order.
fn reasons(source: &str) -> anyhow::Result<Vec<(&str, String)>> {
    let (_, body) = source
        .split_once("pub enum Reason {")
        .context("crates/core/src/reason.rs: there is no enum Reason")?;
    let (body, _) = body.split_once("\n    }").context("crates/core/src/reason.rs: the enum does not end")?;
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if let Some(variant) = line.strip_suffix(',') {
            anyhow::ensure!(!comment.is_empty(), "crates/core/src/reason.rs: {variant} has no doc comment");
            let (_, code) = variant
                .split_once(" = ")
                .with_context(|| format!("crates/core/src/reason.rs: {variant} has no code"))?;
            found.push((code.trim_matches('"'), std::mem::take(&mut comment).trim().to_owned()));
        }
    }
    anyhow::ensure!(!found.is_empty(), "crates/core/src/reason.rs: the enum has no variants");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_get_their_comments_and_codes() {
        let source =
            "pub enum Reason {\n        /// Gone\n        /// for good.\n        Gone = \"gone\",\n    }\n";
        assert!(page(source).unwrap().contains("| `gone` | Gone for good. |"));
        assert!(page(&source.replace(" = \"gone\"", "")).is_err(), "a variant without a code");
        assert!(page(&source.replace("/// ", "")).is_err(), "a variant without a comment");
    }
}
