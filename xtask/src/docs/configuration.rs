//! The reference of the configuration, from the comments and values of `oncely.default.toml`.

use super::head;

/// What a consumer must say: its value in the file is an example, not a default.
const REQUIRED: [&str; 4] = ["name", "queue", "tenant", "key"];

/// The same, without which a worker of one's own in Rust can do.
const EXAMPLES: [&str; 1] = ["handler"];

pub(super) fn page(text: &str) -> anyhow::Result<String> {
    let mut page = head("Configuration", "oncely.default.toml");
    let mut comment = Vec::new();
    let mut section = String::new();
    let mut keys = 0;
    for line in text.lines() {
        if let Some((name, value, remark)) = key_of(line) {
            keys += 1;
            let is_set = !line.starts_with('#');
            key(&mut page, &section, &Key { name, value, remark, is_set }, &comment);
            comment.clear();
        } else if let Some(name) = line.strip_prefix('[') {
            let name = name.trim_matches(['[', ']']);
            section = name.to_owned();
            let brackets = if line.starts_with("[[") { format!("[[{name}]]") } else { format!("[{name}]") };
            page.push_str(&format!("## `{brackets}`\n\n"));
            prose(&mut page, &comment);
            comment.clear();
        } else if let Some(rest) = line.strip_prefix('#') {
            comment.push(rest.strip_prefix(' ').unwrap_or(rest));
        } else {
            anyhow::ensure!(line.is_empty(), "oncely.default.toml: what is this line? {line}");
            // A comment that belongs to no key: the file's head.
            if section.is_empty() {
                prose(&mut page, &comment);
                comment.clear();
            }
        }
    }
    anyhow::ensure!(comment.is_empty(), "oncely.default.toml: a comment behind the last key: {comment:?}");
    anyhow::ensure!(keys > 50, "oncely.default.toml: only {keys} keys were found");
    Ok(page.trim_end().to_owned() + "\n")
}

struct Key<'a> {
    name: &'a str,
    value: &'a str,
    remark: &'a str,
    /// Set in the file, not only named in a comment.
    is_set: bool,
}

/// `name = value   # remark`, also behind a `# `.
fn key_of(line: &str) -> Option<(&str, &str, &str)> {
    let line = line.strip_prefix("# ").unwrap_or(line);
    let (name, rest) = line.split_once(" = ")?;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
        return None;
    }
    let (value, remark) = rest.split_once("  #").unwrap_or((rest, ""));
    Some((name, value.trim(), remark.trim()))
}

fn key(page: &mut String, section: &str, key: &Key<'_>, comment: &[&str]) {
    let Key { name, value, remark, is_set } = *key;
    page.push_str(&format!("### `{section}.{name}`\n\n"));
    let is_consumer = section == "consumers";
    let mut facts = vec![match () {
        () if is_consumer && REQUIRED.contains(&name) => format!("Required; for example `{value}`"),
        () if is_consumer && EXAMPLES.contains(&name) => format!("For example `{value}`"),
        () if is_set => format!("Default: `{value}`"),
        () => format!("No default; for example `{value}`"),
    }];
    if !remark.is_empty() {
        facts.push(sentence(remark));
    }
    if !is_consumer {
        facts.push(format!(
            "environment: `ONCELY_{}__{}`",
            section.to_ascii_uppercase(),
            name.to_ascii_uppercase()
        ));
    }
    page.push_str(&facts.join(" · "));
    page.push_str("\n\n");
    prose(page, comment);
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
fn prose(page: &mut String, lines: &[&str]) {
    if lines.is_empty() {
        return;
    }
    let mut in_code = false;
    for line in lines {
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
    fn keys_comments_and_remarks_are_told_apart() {
        assert_eq!(key_of("ttl = \"1h\""), Some(("ttl", "\"1h\"", "")));
        assert_eq!(
            key_of("# url = \"redis://h\"      # or REDIS_URL"),
            Some(("url", "\"redis://h\"", "or REDIS_URL"))
        );
        assert_eq!(key_of("# A key that is left out keeps its default"), None);
        assert_eq!(key_of("# What wins: this < ONCELY_MIRROR__TTL=2h"), None);
        assert_eq!(sentence("required, here or as DATABASE_URL"), "required, here or as `DATABASE_URL`");
    }
}
