//! Escapes control, bidirectional and zero-width characters in untrusted text: no key, tenant or error can move a cursor, reorder a line,
//! or be invisible. Shared by the command line, the log and the final errors of programs.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a character is hidden: control characters, characters that change the direction of text, and those without width.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

fn escaped(text: &str, keeps: impl Fn(char) -> bool, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.chars().any(|character| is_hidden(character) && !keeps(character)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_hidden(character) && !keeps(character) {
            escape(&mut shown, character);
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

/// Escapes a value within a line: hidden characters as `\u{1b}`, line breaks too.
pub fn value(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false, |shown, character| shown.extend(character.escape_unicode()))
}

/// Escapes lines of already escaped values, as a safety net.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| character == '\n', |shown, character| shown.extend(character.escape_unicode()))
}

/// Escapes a line of the log. `coloured`: it has escape sequences of our own, and its values have none.
pub fn log_line(text: &str, coloured: bool) -> Cow<'_, str> {
    let keeps = |character| coloured && character == '\u{1b}';
    match text.strip_suffix('\n') {
        None => escaped(text, keeps, |shown, character| shown.extend(character.escape_unicode())),
        Some(line) => {
            let line = escaped(line, keeps, |shown, character| shown.extend(character.escape_unicode()));
            Cow::Owned(format!("{line}\n"))
        }
    }
}

/// Escapes JSON: parsed it is the same text, and nothing is hidden from a reader.
pub fn json(text: &str) -> Cow<'_, str> {
    let escape = |shown: &mut String, character: char| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    };
    // Outside strings serde_json writes no control character but line breaks, and none inside them.
    escaped(text, |character| character == '\n', escape)
}

/// Quotes a word for a shell (bash, zsh and POSIX of 2024, if it has hidden characters).
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    if !text.chars().any(is_hidden) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut said = "$'".to_owned();
    for character in text.chars() {
        let _ = match character {
            '\'' | '\\' => write!(said, "\\{character}"),
            hidden if is_hidden(hidden) => {
                hidden.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(said, "\\x{byte:02x}"))
            }
            plain => write!(said, "{plain}"),
        };
    }
    said.push('\'');
    said
}

/// Returns ` --name value`; a value that looks like an option stays a value.
pub fn shell_flag(name: &str, value: &str) -> String {
    let between = if value.starts_with('-') { '=' } else { ' ' };
    format!(" --{name}{between}{}", shell_word(value))
}

/// Returns the flags of the values that are set.
pub fn shell_flags<'a>(named: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    named.into_iter().filter_map(|(name, value)| Some(shell_flag(name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{202e}b\u{200b}\u{2066}\r\n\u{7f}\u{9b}c\u{e0041}";

    #[test]
    fn nothing_hidden_is_shown_and_everything_else_stays() {
        let shown = value(HOSTILE);
        assert_eq!(shown, "a\\u{1b}[2J\\u{202e}b\\u{200b}\\u{2066}\\u{d}\\u{a}\\u{7f}\\u{9b}c\\u{e0041}");
        let fine = "Ünï code … “ü” – 日本 🙂";
        assert_eq!(value(fine), fine);
        assert_eq!(lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn json_means_what_it_meant() {
        let text = serde_json::to_string_pretty(&serde_json::json!({ "key": HOSTILE })).unwrap();
        let shown = json(&text);
        assert!(!shown.chars().any(|character| is_hidden(character) && character != '\n'), "{shown}");
        let value: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(value["key"], HOSTILE);
    }

    #[test]
    fn a_line_of_the_log_is_one_line() {
        assert_eq!(log_line("key=a\nERROR b\n", false), "key=a\\u{a}ERROR b\n");
        assert_eq!(
            log_line("\u{1b}[31mERROR\u{1b}[0m \u{202e}\n", true),
            "\u{1b}[31mERROR\u{1b}[0m \\u{202e}\n"
        );
    }

    #[test]
    fn a_word_of_a_shell_hides_nothing_and_is_no_option() {
        assert_eq!(shell_word("order-1182"), "order-1182");
        assert_eq!(shell_word("it's; rm"), "'it'\\''s; rm'");
        assert_eq!([shell_word(""), shell_word("--all")], ["''", "'--all'"]);
        assert_eq!([shell_flag("key", "--help"), shell_flag("key", "a")], [" --key='--help'", " --key a"]);
        assert_eq!(shell_word("tab\there's\u{202e}\\"), "$'tab\\x09here\\'s\\xe2\\x80\\xae\\\\'");
    }
}
