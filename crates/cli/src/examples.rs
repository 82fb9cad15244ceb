//! Examples in the help of each verb. A test parses every line.

use clap::Command;

/// Command lines without indentation, and their examples below each, indented as the help shows them.
const EXAMPLES: &str = include_str!("examples.txt");

/// Order of the help: description, examples, usage, arguments, notes.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// Returns the examples of a verb.
fn examples_of(verb: &str) -> impl Iterator<Item = &'static str> {
    let below = EXAMPLES.lines().skip_while(move |line| *line != verb).skip(1);
    below.take_while(|line| line.starts_with(' '))
}

/// Adds the examples to a verb and all verbs below it.
pub(super) fn add(command: Command) -> Command {
    add_to_all(command, "oncely", &|command, examples| command.before_help(examples).help_template(TEMPLATE))
}

/// Adds the examples for man pages, where they are last.
pub(super) fn add_for_man(command: Command) -> Command {
    add_to_all(command, "oncely", &|command, examples| {
        let after = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        command.after_help(format!("{after}{examples}"))
    })
}

/// Adds the examples of a verb and of all verbs below it, by `add`.
fn add_to_all(command: Command, verb: &str, add: &impl Fn(Command, String) -> Command) -> Command {
    let lines = examples_of(verb).map(|line| format!("\n{line}"));
    let examples = format!("Examples:{}", lines.collect::<String>());
    add(command, examples).mut_subcommands(|inner| {
        let name = format!("{verb} {}", inner.get_name());
        add_to_all(inner, &name, add)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbs(command: &Command, verb: &str, found: &mut Vec<String>) {
        found.push(verb.to_owned());
        for inner in command.get_subcommands() {
            verbs(inner, &format!("{verb} {}", inner.get_name()), found);
        }
    }

    /// Splits a line into words; text between apostrophes is one word.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut is_quoted = false;
        for character in line.chars() {
            match character {
                '\'' => is_quoted = !is_quoted,
                ' ' if !is_quoted => words.push(String::new()),
                other => words.last_mut().unwrap().push(other),
            }
        }
        words
    }

    #[test]
    fn every_verb_has_examples_and_every_example_is_a_command_line() {
        let mut all = Vec::new();
        verbs(&super::super::command(), "oncely", &mut all);
        let left_out = [
            ("oncely console", !cfg!(feature = "console")),
            ("oncely gateway", !cfg!(feature = "gateway")),
            ("oncely top", !cfg!(feature = "top")),
        ];
        let is_verb = |line: &&str| !line.starts_with(' ') && !left_out.contains(&(*line, true));
        let listed: Vec<&str> = EXAMPLES.lines().filter(is_verb).collect();
        all.sort_unstable();
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, all, "each verb has examples, and nothing else has");
        for verb in listed {
            assert_ne!(examples_of(verb).count(), 0, "{verb}");
            for line in examples_of(verb).map(str::trim_start) {
                assert!(line.starts_with(verb), "{verb}: {line}");
                super::super::command()
                    .try_get_matches_from(words(line))
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }
}
