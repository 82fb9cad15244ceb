//! The reference of the configuration and the file of defaults, from the types of the settings (`oncely config docs`).

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::head;

fn config_docs(programs: &Path, format: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(programs.join("oncely"))
        .args(["config", "docs"])
        .args(format)
        .env_clear()
        .output()
        .context("cannot run oncely")?;
    anyhow::ensure!(output.status.success(), "oncely config docs: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The file of defaults.
pub(super) fn defaults(programs: &Path) -> anyhow::Result<String> {
    config_docs(programs, &["--toml"])
}

pub(super) fn page(programs: &Path) -> anyhow::Result<String> {
    let docs: Value = serde_json::from_str(&config_docs(programs, &["--output", "json"])?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let settings = docs["settings"].as_array().context("no settings")?;
    anyhow::ensure!(settings.len() > 50, "only {} settings were found", settings.len());
    let mut page = head("Configuration", "crates/config");
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
    facts.extend(of("environment").map(|variable| format!("environment: `{variable}`")));
    facts.join(" · ")
}

/// Paragraphs, and items of lists.
fn prose(page: &mut String, text: &str) {
    for (index, line) in text.lines().enumerate() {
        if index > 0 && !line.starts_with("* ") {
            page.push('\n');
        }
        page.push_str(&line.replace('<', "&lt;"));
        page.push('\n');
    }
    if !text.is_empty() {
        page.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_others_is_no_code() {
        let setting = serde_json::json!({
            "type": "whole number", "unit": null, "default": "2 × batch × lanes", "example": "2000", "required": false,
            "environment": null,
        });
        assert_eq!(facts(&setting), "whole number · default: 2 × batch × lanes; for example `2000`");
    }
}
