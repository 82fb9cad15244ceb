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

/// Replaces the hidden characters of a text by their escapes, except those for which `is_kept` is true.
fn escape_hidden(
    text: &str,
    is_kept: impl Fn(char) -> bool,
    escape: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.chars().any(|character| is_hidden(character) && !is_kept(character)) {
        return Cow::Borrowed(text);
    }
    let mut output = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_hidden(character) && !is_kept(character) {
            escape(&mut output, character);
        } else {
            output.push(character);
        }
    }
    Cow::Owned(output)
}

/// Escapes a value within a line: hidden characters, including line breaks, become `\u{1b}` and the like.
pub fn escape_value(text: &str) -> Cow<'_, str> {
    escape_hidden(text, |_| false, |shown, character| shown.extend(character.escape_unicode()))
}

/// Escapes lines of already escaped values, as a safety net.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    escape_hidden(
        text,
        |character| character == '\n',
        |shown, character| shown.extend(character.escape_unicode()),
    )
}

/// Escapes a line of the log, except the line break at its end. `is_coloured`: the line has Oncely's own escape sequences, and its values
/// have none.
pub fn escape_log_line(text: &str, is_coloured: bool) -> Cow<'_, str> {
    let is_kept = |character| is_coloured && character == '\u{1b}';
    match text.strip_suffix('\n') {
        None => escape_hidden(text, is_kept, |shown, character| shown.extend(character.escape_unicode())),
        Some(line) => {
            let line =
                escape_hidden(line, is_kept, |shown, character| shown.extend(character.escape_unicode()));
            Cow::Owned(format!("{line}\n"))
        }
    }
}

/// Escapes the hidden characters of a JSON text, which parses to the same value.
pub fn escape_json(text: &str) -> Cow<'_, str> {
    let escape = |shown: &mut String, character: char| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    };
    // Outside strings serde_json writes no control character but line breaks, and none inside them.
    escape_hidden(text, |character| character == '\n', escape)
}

/// Quotes a word for a shell (bash, zsh and POSIX of 2024, if it has hidden characters).
pub fn quote_shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.to_owned();
    }
    if !text.chars().any(is_hidden) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut quoted = "$'".to_owned();
    for character in text.chars() {
        let _ = match character {
            '\'' | '\\' => write!(quoted, "\\{character}"),
            hidden if is_hidden(hidden) => {
                hidden.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(quoted, "\\x{byte:02x}"))
            }
            plain => write!(quoted, "{plain}"),
        };
    }
    quoted.push('\'');
    quoted
}

/// Formats ` --name value` for a shell; a value that looks like an option stays a value.
pub fn format_shell_flag(name: &str, value: &str) -> String {
    let separator = if value.starts_with('-') { '=' } else { ' ' };
    format!(" --{name}{separator}{}", quote_shell_word(value))
}

/// Formats the flags of those values that are set.
pub fn format_shell_flags<'a>(flags: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    flags.into_iter().filter_map(|(name, value)| Some(format_shell_flag(name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}[2J\u{202e}b\u{200b}\u{2066}\r\n\u{7f}\u{9b}c\u{e0041}";

    #[test]
    fn nothing_hidden_is_shown_and_everything_else_stays() {
        let shown = escape_value(HOSTILE);
        assert_eq!(shown, "a\\u{1b}[2J\\u{202e}b\\u{200b}\\u{2066}\\u{d}\\u{a}\\u{7f}\\u{9b}c\\u{e0041}");
        let fine = "Ünï code … “ü” – 日本 🙂";
        assert_eq!(escape_value(fine), fine);
        assert_eq!(escape_lines("a\nb\u{1b}"), "a\nb\\u{1b}");
    }

    #[test]
    fn json_means_what_it_meant() {
        let text = serde_json::to_string_pretty(&serde_json::json!({ "key": HOSTILE })).unwrap();
        let shown = escape_json(&text);
        assert!(!shown.chars().any(|character| is_hidden(character) && character != '\n'), "{shown}");
        let value: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(value["key"], HOSTILE);
    }

    #[test]
    fn a_line_of_the_log_is_one_line() {
        assert_eq!(escape_log_line("key=a\nERROR b\n", false), "key=a\\u{a}ERROR b\n");
        assert_eq!(
            escape_log_line("\u{1b}[31mERROR\u{1b}[0m \u{202e}\n", true),
            "\u{1b}[31mERROR\u{1b}[0m \\u{202e}\n"
        );
    }

    #[test]
    fn a_word_of_a_shell_hides_nothing_and_is_no_option() {
        assert_eq!(quote_shell_word("order-1182"), "order-1182");
        assert_eq!(quote_shell_word("it's; rm"), "'it'\\''s; rm'");
        assert_eq!([quote_shell_word(""), quote_shell_word("--all")], ["''", "'--all'"]);
        assert_eq!(
            [format_shell_flag("key", "--help"), format_shell_flag("key", "a")],
            [" --key='--help'", " --key a"]
        );
        assert_eq!(quote_shell_word("tab\there's\u{202e}\\"), "$'tab\\x09here\\'s\\xe2\\x80\\xae\\\\'");
    }
}
