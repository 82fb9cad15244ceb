//! The reference of the configuration: what `oncely config docs` says, which is read from the comments of `oncely.default.toml`.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::head;

pub(super) fn page(programs: &Path) -> anyhow::Result<String> {
    let output = Command::new(programs.join("oncely"))
        .args(["config", "docs", "--output", "json"])
        .env_clear()
        .output()
        .context("cannot run oncely")?;
    anyhow::ensure!(output.status.success(), "oncely config docs: {}", output.status);
    let docs: Value = serde_json::from_slice(&output.stdout)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let settings = docs["settings"].as_array().context("no settings")?;
    anyhow::ensure!(settings.len() > 50, "only {} settings were found", settings.len());
    let mut page = head("Configuration", "oncely.default.toml");
    prose(&mut page, &text(&docs["about"]));
    for table in docs["tables"].as_array().context("no tables")? {
        page.push_str(&format!("## `{}`\n\n", text(&table["heading"])));
        prose(&mut page, &text(&table["about"]));
        let name = format!("{}.", text(&table["table"]));
        for setting in settings.iter().filter(|setting| text(&setting["key"]).starts_with(&name)) {
            page.push_str(&format!("### `{}`\n\n{}\n\n", text(&setting["key"]), facts(setting)));
            prose(&mut page, &text(&setting["about"]));
        }
    }
    Ok(page.trim_end().to_owned() + "\n")
}

/// What is short about a setting.
fn facts(setting: &Value) -> String {
    let of = |name: &str| setting[name].as_str();
    let kind = of("type").unwrap_or_default();
    let mut facts = vec![match of("unit") {
        Some(unit) => format!("{kind} ({unit})"),
        None => kind.to_owned(),
    }];
    let example = of("example").unwrap_or_default();
    facts.push(match of("default") {
        _ if setting["required"] == true => format!("required; for example `{example}`"),
        // In words: it depends on others.
        Some(default) if default != example => format!("default: {default}; for example `{example}`"),
        Some(default) => format!("default: `{default}`"),
        None => format!("no default; for example `{example}`"),
    });
    let remark = of("remark").map(|remark| remark.strip_prefix("required, ").unwrap_or(remark));
    facts.extend(remark.map(sentence));
    facts.extend(of("environment").map(|variable| format!("environment: `{variable}`")));
    facts.join(" · ")
}

/// Environment variables and TOML in a remark are code.
fn sentence(remark: &str) -> String {
    let words = remark.split(' ').map(|word| {
        let bare = word.trim_end_matches([',', ';', ')']);
        let is_code =
            bare.len() > 4 && bare.chars().all(|c| c.is_ascii_uppercase() || c == '_') && bare.contains('_');
        match is_code {
            true => format!("`{bare}`{}", &word[bare.len()..]),
            false => word.to_owned(),
        }
    });
    let text = words.collect::<Vec<_>>().join(" ");
    match text.split_once(" = ") {
        // "or queues = [...]"
        Some(_) if text.starts_with("or ") => format!("or `{}`", &text[3..]),
        _ => text,
    }
}

/// Paragraphs; lines that begin with blanks, and what they are continued by, are code.
fn prose(page: &mut String, text: &str) {
    if text.is_empty() {
        return;
    }
    let mut in_code = false;
    for line in text.lines() {
        let is_code = line.starts_with("  ");
        match (in_code, is_code) {
            (false, true) => page.push_str("\n```text\n"),
            (true, false) => page.push_str("```\n\n"),
            _ => {}
        }
        in_code = is_code;
        let line = if is_code { line.trim_start().to_owned() } else { line.replace('<', "&lt;") };
        page.push_str(&line);
        page.push('\n');
    }
    if in_code {
        page.push_str("```\n");
    }
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_a_remark_are_code() {
        assert_eq!(sentence("required, here or as DATABASE_URL"), "required, here or as `DATABASE_URL`");
    }

    #[test]
    fn what_depends_on_others_is_no_code() {
        let setting = serde_json::json!({
            "type": "whole number", "unit": null, "default": "2 × batch × lanes", "example": "2000", "required": false,
            "remark": null, "environment": null,
        });
        assert_eq!(facts(&setting), "whole number · default: 2 × batch × lanes; for example `2000`");
    }
}
