//! Examples in the help of each verb. A test parses every line.

use clap::Command;

/// Examples by verb, without the program's name.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("", &["oncely doctor", "oncely status", "oncely explain order-1182 --tenant acme"]),
    ("worker", &["oncely worker", "oncely worker --config /etc/oncely/oncely.toml"]),
    ("relay", &["oncely relay", "oncely relay --config /etc/oncely/oncely.toml"]),
    ("migrate", &["oncely migrate plan", "oncely migrate", "oncely migrate --wait 5m"]),
    ("migrate run", &["oncely migrate run", "oncely migrate run --wait 5m"]),
    ("migrate plan", &["oncely migrate plan", "oncely migrate plan -o json"]),
    ("migrate info", &["oncely migrate info", "oncely migrate info -o json"]),
    ("migrate revert", &["oncely migrate revert --yes"]),
    ("check", &["oncely check", "oncely check --as relay", "oncely check --json"]),
    (
        "doctor",
        &["oncely doctor", "oncely doctor --only mq --verbose", "oncely doctor --bundle report.tar.gz"],
    ),
    ("topology", &["oncely topology show", "oncely topology apply"]),
    ("topology apply", &["oncely topology apply"]),
    ("topology show", &["oncely topology show", "oncely topology show -o csv"]),
    ("status", &["oncely status", "oncely status --watch", "oncely status --json"]),
    #[cfg(feature = "top")]
    ("top", &["oncely top", "oncely top --once", "oncely top --json --every 10"]),
    ("audit", &["oncely audit list --since 2h", "oncely audit verify"]),
    (
        "audit list",
        &[
            "oncely audit list --outcome dead_lettered --since 2h",
            "oncely audit list --tenant acme --consumer payments --since yesterday",
            "oncely audit list --key order-1182 -o ndjson",
        ],
    ),
    ("audit verify", &["oncely audit verify", "oncely audit verify --anchor 9b1c7f"]),
    (
        "failed",
        &[
            "oncely failed groups --since 2h",
            "oncely failed list --group attempts_exhausted/P0001/1f3a5c7d",
            "oncely failed requeue --group attempts_exhausted/P0001/1f3a5c7d --note 'schema mended'",
        ],
    ),
    (
        "failed groups",
        &["oncely failed groups", "oncely failed groups --consumer payments --since 2h -o csv"],
    ),
    (
        "failed list",
        &[
            "oncely failed list --consumer payments",
            "oncely failed list --reason key_conflict --state any",
            "oncely failed list --since 7d --limit 100000 -o csv",
        ],
    ),
    (
        "failed show",
        &[
            "oncely failed show 0191e2b4-6b0c-7cc3-98d4-0123456789ab",
            "oncely failed show 0191e2b4-6b0c-7cc3-98d4-0123456789ab --body",
        ],
    ),
    (
        "failed requeue",
        &[
            "oncely failed requeue --group attempts_exhausted/P0001/1f3a5c7d --dry-run",
            "oncely failed requeue --key order-1182 --tenant acme --consumer payments --note 'account opened'",
            "oncely failed requeue --consumer payments --since 2h --yes",
        ],
    ),
    (
        "failed discard",
        &[
            "oncely failed discard --reason body_too_large --dry-run",
            "oncely failed discard --key order-1182 --tenant acme --note 'sent by mistake'",
        ],
    ),
    ("failed park", &["oncely failed park order-1182 --tenant acme --note 'kills the worker'"]),
    ("failed sweep", &["oncely failed sweep", "oncely failed sweep --queue payments"]),
    (
        "outbox",
        &[
            "oncely outbox list --state parked",
            "oncely outbox retry --exchange orders --note 'exchange is back'",
            "oncely outbox discard --reason requester_gone --older-than 1d --yes",
        ],
    ),
    ("outbox list", &["oncely outbox list", "oncely outbox list --state parked --exchange orders -o ndjson"]),
    ("outbox retry", &["oncely outbox retry --exchange orders --dry-run", "oncely outbox retry --all --yes"]),
    ("outbox discard", &["oncely outbox discard --reason requester_gone --older-than 1d --yes"]),
    (
        "consumers",
        &[
            "oncely consumers list",
            "oncely consumers pause payments --reason 'schema change' --for 30m",
            "oncely consumers resume payments",
        ],
    ),
    ("consumers list", &["oncely consumers list", "oncely consumers list -o json"]),
    (
        "consumers pause",
        &[
            "oncely consumers pause payments --reason 'schema change' --for 30m",
            "oncely consumers pause payments --reason 'bank is down'",
        ],
    ),
    ("consumers resume", &["oncely consumers resume payments"]),
    #[cfg(feature = "console")]
    ("console", &["oncely console --open", "oncely console --listen 127.0.0.1:7421"]),
    #[cfg(feature = "gateway")]
    (
        "gateway",
        &[
            "oncely gateway --upstream http://127.0.0.1:8080",
            "oncely gateway --config /etc/oncely/gateway.toml",
        ],
    ),
    ("adopt", &["oncely adopt check", "oncely adopt report --consumer payments"]),
    ("adopt check", &["oncely adopt check", "oncely adopt check --consumer payments -o json"]),
    (
        "adopt report",
        &[
            "oncely adopt report --consumer payments",
            "oncely adopt report --consumer payments --since 2h -o json",
        ],
    ),
    ("mirror", &["oncely mirror stats", "oncely mirror verify"]),
    ("mirror stats", &["oncely mirror stats", "oncely mirror stats --json"]),
    ("mirror verify", &["oncely mirror verify", "oncely mirror verify --sample 10000"]),
    (
        "mirror rebuild",
        &[
            "oncely mirror rebuild --note 'Redis was replaced'",
            "oncely mirror rebuild --consumer payments --rate 1000",
        ],
    ),
    ("keys", &["oncely keys list --tenant acme", "oncely keys show order-1182"]),
    (
        "keys list",
        &[
            "oncely keys list --tenant acme --consumer payments",
            "oncely keys list --consumer payments --status failed --since 7d -o csv",
            "oncely keys list --consumer payments --status in-progress",
        ],
    ),
    (
        "keys show",
        &[
            "oncely keys show order-1182",
            "oncely keys show order-1182 --tenant acme --consumer payments --json",
        ],
    ),
    (
        "keys seed",
        &[
            "oncely keys seed processed.csv --consumer payments --dry-run",
            "oncely keys seed processed.csv --consumer payments --note 'cut-over, 25 November'",
            "oncely keys seed - --consumer invoices --tenant acme --retention 7d --json",
        ],
    ),
    (
        "keys settle",
        &[
            "oncely keys settle order-1182 --took-effect yes --note 'charge ch_71 is there'",
            "oncely keys settle order-1182 --tenant acme --consumer shop --took-effect no --dry-run",
        ],
    ),
    ("processes", &["oncely processes forget --host shop-3"]),
    (
        "processes forget",
        &[
            "oncely processes forget",
            "oncely processes forget --host shop-3 --name worker --note 'scaled down'",
        ],
    ),
    ("leases", &["oncely leases list --over", "oncely leases release order-1182 --note 'host is gone'"]),
    (
        "leases list",
        &[
            "oncely leases list",
            "oncely leases list --consumer payments --over",
            "oncely leases list -o ndjson",
        ],
    ),
    (
        "leases release",
        &[
            "oncely leases release order-1182 --dry-run",
            "oncely leases release order-1182 --tenant acme --consumer payments --note 'host is gone'",
        ],
    ),
    (
        "explain",
        &["oncely explain order-1182", "oncely explain order-1182 --tenant acme --consumer payments --json"],
    ),
    (
        "grant",
        &[
            "oncely grant shop --consumer invoices --tenant acme",
            "oncely grant shop --emit --exchange orders --tenant '*'",
            "oncely grant acme_support --read --tenant acme",
            "oncely grant shop --revoke --consumer invoices",
            "oncely grant --list",
        ],
    ),
    ("tenant", &["oncely tenant export acme", "oncely tenant erase acme --dry-run"]),
    (
        "tenant export",
        &["oncely tenant export acme", "oncely tenant export acme --reveal --note 'asked for, 2026-11-25'"],
    ),
    (
        "tenant erase",
        &[
            "oncely tenant erase acme --dry-run",
            "oncely tenant erase acme --note 'contract ended'",
            "oncely tenant erase acme --trail delete --forget-keys --yes --json",
        ],
    ),
    ("tenant usage", &["oncely tenant usage", "oncely tenant usage --limit 10 --json"]),
    (
        "tenant limit",
        &[
            "oncely tenant limit acme --letters 1000 --bytes 10000000 --note 'sends what nobody can read'",
            "oncely tenant limit acme --retention 90d --note 'their contract says so'",
            "oncely tenant limit acme --default",
        ],
    ),
    ("gc", &["oncely gc run --dry-run"]),
    ("gc run", &["oncely gc run --dry-run", "oncely gc run", "oncely gc run --accept-clock"]),
    ("retention", &["oncely retention list", "oncely retention set payments 3d --note 'less is enough'"]),
    ("retention list", &["oncely retention list"]),
    ("secrets", &["oncely secrets list", "oncely secrets rotate identity --note 'yearly'"]),
    ("secrets list", &["oncely secrets list", "oncely secrets list -o json"]),
    (
        "secrets rotate",
        &[
            "oncely secrets rotate identity --note 'yearly'",
            "oncely secrets rotate letter --accept 90d",
            "oncely secrets rotate mirror --signs-in 10m",
        ],
    ),
    ("retention set", &["oncely retention set payments 3d --note 'less is enough'"]),
    (
        "publish",
        &[
            "oncely publish payments '{\"order\": \"1182\"}' --message-id order-1182 --header x-tenant-id=acme",
            "oncely publish webhooks --lines examples/webhooks/sample.jsonl",
        ],
    ),
    ("handler", &["oncely handler test examples/webhooks/sample.jsonl"]),
    (
        "handler test",
        &[
            "oncely handler test examples/webhooks/sample.jsonl",
            "oncely handler test orders.jsonl --consumer orders --one-by-one --json",
        ],
    ),
    ("config", &["oncely config show", "oncely config docs consumers.retention"]),
    ("config schema", &["oncely config schema"]),
    ("config show", &["oncely config show", "oncely config show --defaults", "oncely config show -o json"]),
    (
        "config docs",
        &[
            "oncely config docs",
            "oncely config docs consumers.retention",
            "oncely config docs mirror",
            "oncely config docs --toml",
        ],
    ),
    ("completions", &["oncely completions bash", "oncely completions zsh"]),
    ("man", &["oncely man", "oncely man --dir /usr/local/share/man/man1"]),
];

/// Order of the help: description, examples, usage, arguments, notes.
const TEMPLATE: &str = "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

fn examples_of(verb: &str) -> Option<&'static [&'static str]> {
    EXAMPLES.iter().find(|(name, _)| *name == verb).map(|(_, lines)| *lines)
}

/// Adds the examples to a verb and all verbs below it.
pub(super) fn add(command: Command) -> Command {
    add_to_all(command, "", &|command, examples| command.before_help(examples).help_template(TEMPLATE))
}

/// Adds the examples for man pages, where they are last.
pub(super) fn add_for_man(command: Command) -> Command {
    add_to_all(command, "", &|command, examples| {
        let after = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        command.after_help(format!("{after}{examples}"))
    })
}

fn add_to_all(command: Command, verb: &str, add: &impl Fn(Command, String) -> Command) -> Command {
    let lines = examples_of(verb).unwrap_or_default().iter().map(|line| format!("\n  {line}"));
    let examples = format!("Examples:{}", lines.collect::<String>());
    add(command, examples).mut_subcommands(|inner| {
        let name = format!("{verb} {}", inner.get_name()).trim_start().to_owned();
        add_to_all(inner, &name, add)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verbs(command: &Command, verb: &str, found: &mut Vec<String>) {
        found.push(verb.to_owned());
        for inner in command.get_subcommands() {
            verbs(inner, format!("{verb} {}", inner.get_name()).trim_start(), found);
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
        verbs(&super::super::command(), "", &mut all);
        let listed: Vec<&str> = EXAMPLES.iter().map(|(verb, _)| *verb).collect();
        all.sort_unstable();
        let mut sorted = listed.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, all, "each verb has examples, and nothing else has");
        for (verb, lines) in EXAMPLES {
            assert!(!lines.is_empty());
            for line in *lines {
                assert!(line.starts_with(&format!("oncely {verb}")) || verb.is_empty(), "{verb}: {line}");
                super::super::command()
                    .try_get_matches_from(words(line))
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }
}
