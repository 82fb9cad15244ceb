//! What `oncely` says of configuration and command line without asking a server.

use std::process::{Command, Output};

use serde_json::Value;

use crate::command_line::stdout;
use crate::support::program;

/// Runs `oncely` with a configuration of this text and nothing in the environment but this.
fn oncely(text: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let scratch = testbed::Scratch::new("configured").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(program("oncely"));
    command.args(arguments).env_clear().env("ONCELY_CONFIG", &file).envs(environment.iter().copied());
    command.output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const TEXT: &str = r#"
[cell]
signing_key = "S3CR3T-S3CR3T-S3CR3T"
known_keys = ["S3CR3T-S3CR3T-S3CR3T"]
[postgres]
url = "postgres://u:S3CR3T@h/d?sslpassword=S3CR3T"
[redis]
url = "redis://:S3CR3T@mymaster/0"
sentinels = ["redis://:S3CR3T@h:26379", "redis://g"]
[mirror]
ttl = "30m"
kye = "S3CR3T"
[mirorr]
key = "S3CR3T"
[console]
key = "S3CR3T-S3CR3T-S3CR3T"
trace_url = "https://u:S3CR3T@tempo.example.com/trace/{trace_id}"
[traces]
endpoint = "http://u:S3CR3T@127.0.0.1:4318"
headers = { authorization = "Bearer S3CR3T" }
[[consumers]]
name = "payments"
queue = "payments"
tenant = { header = "x-tenant-id" }
key = "body_hash"
batch = 64
[[consumers]]
name = "ledger"
queues = ["a", "b"]
tenant = { fixed = "acme" }
key = "body_hash"
"#;

fn values(output: &Output) -> Vec<(String, String, String)> {
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["schema"], "oncely.config/1");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let values = object["values"].as_array().unwrap().iter();
    values.map(|row| (text(&row["key"]), text(&row["value"]), text(&row["source"]))).collect()
}

#[test]
fn config_show_says_which_value_holds_and_where_it_was_said_and_no_secret() {
    let environment = [
        ("DATABASE_URL", "postgres://u:S3CR3T@other/d"),
        ("ONCELY_MIRROR__BUDGET", "5ms"),
        ("ONCELY_MIRROR__KEY", "S3CR3T-S3CR3T-S3CR3T"),
        ("ONCELY_RELAY__BATCH", "7"),
    ];
    let output = oncely(TEXT, &["config", "show", "--json"], &environment);
    assert!(output.status.success(), "{}", told(&output));
    let values = values(&output);
    let of = |key: &str| {
        let found = values.iter().find(|(name, ..)| name == key);
        let (_, value, source) = found.unwrap_or_else(|| panic!("{key} is not in {values:?}"));
        let source = source.rsplit('/').next().unwrap();
        (value.as_str(), source.to_owned())
    };
    for (key, value, source) in [
        ("cell.signing_key", "***", "oncely.toml"),
        ("cell.known_keys", "***", "oncely.toml"),
        ("postgres.url", "\"postgres://u:***@other/d\"", "DATABASE_URL"),
        ("redis.url", "\"redis://:***@mymaster/0\"", "oncely.toml"),
        ("redis.sentinels", "[\"redis://:***@h:26379\", \"redis://g\"]", "oncely.toml"),
        ("mirror.ttl", "\"30m\"", "oncely.toml"),
        ("mirror.budget", "\"5ms\"", "ONCELY_MIRROR__BUDGET"),
        ("mirror.key", "***", "ONCELY_MIRROR__KEY"),
        ("mirror.kye", "(unknown: not shown)", "oncely.toml"),
        ("console.key", "***", "oncely.toml"),
        ("console.trace_url", "\"https://***@tempo.example.com/trace/{trace_id}\"", "oncely.toml"),
        ("traces.endpoint", "\"http://***@127.0.0.1:4318\"", "oncely.toml"),
        ("traces.headers", "***", "oncely.toml"),
        ("mirorr", "(unknown: not shown)", "oncely.toml"),
        ("relay.batch", "7", "ONCELY_RELAY__BATCH"),
        ("consumers[0].batch", "64", "oncely.toml"),
        ("consumers[1].queues", "[\"a\", \"b\"]", "oncely.toml"),
        ("consumers[1].tenant", "{ fixed = \"acme\" }", "oncely.toml"),
    ] {
        assert_eq!(of(key), (value, source.to_owned()), "{key}");
    }
    assert!(!values.iter().any(|(_, _, source)| source == "default"), "{values:?}");
    assert!(told(&output).contains("unknown key; did you mean key?"), "{}", told(&output));
    let all = oncely(TEXT, &["config", "show", "--defaults"], &environment);
    for shown in [stdout(&output), stdout(&all), told(&output), told(&all)] {
        assert!(!shown.contains("S3CR3T"), "{shown}");
    }
    let all = oncely(TEXT, &["config", "show", "--defaults", "--json"], &environment);
    let all = self::values(&all);
    let default = |key: &str| {
        all.iter().find(|(name, ..)| name == key).map(|(_, value, source)| (value.clone(), source.clone()))
    };
    let said = |value: &str| Some((value.to_owned(), "default".to_owned()));
    assert_eq!(default("gc.load"), said("20"));
    assert_eq!(default("consumers[0].prefetch"), said("2 × batch × lanes"));
    assert_eq!(default("consumers[1].retention"), said("\"7d\""));
    assert_eq!(default("consumers[0].tenant").unwrap().1.rsplit('/').next(), Some("oncely.toml"));
}

#[test]
fn config_show_of_what_is_no_toml_says_where_and_no_secret() {
    let output = oncely("[postgres]\nurl = \"postgres://u:S3CR3T@h\nx", &["config", "show"], &[]);
    assert_eq!(output.status.code(), Some(78));
    assert!(told(&output).contains("is not TOML") && !told(&output).contains("S3CR3T"), "{}", told(&output));
}

#[test]
fn config_docs_tells_each_setting_and_what_was_meant() {
    let one = oncely("", &["config", "docs", "consumers.retention"], &[]);
    insta::assert_snapshot!(stdout(&one), @r#"
    consumers.retention
      type         duration (ms, s, m, h, d)
      default      "7d"
      example      retention = "7d"

    Time for which a key is remembered after it took effect. A copy that comes later runs again. A worker that starts with it tells the database, where the longest one counts, for the relay too; `oncely retention set payments 3d` shortens it.
    "#);
    let table = stdout(&oncely("", &["config", "docs", "mirror", "-o", "csv"], &[]));
    assert!(
        table.starts_with("key,type,unit,default,example,required,environment,about\nmirror.ttl,duration,"),
        "{table}"
    );
    for (asked, meant) in [
        ("retention", "did you mean audit.retention or gateway.retention or consumers.retention?"),
        ("mirror.tll", "did you mean mirror.ttl?"),
    ] {
        let unknown = oncely("", &["config", "docs", asked], &[]);
        assert_eq!(unknown.status.code(), Some(1));
        assert!(told(&unknown).contains(meant), "{}", told(&unknown));
    }
    // The program and the book have the same settings.
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/reference/configuration.md"))
            .unwrap();
    let object: Value =
        serde_json::from_str(&stdout(&oncely("", &["config", "docs", "--json"], &[]))).unwrap();
    let settings = object["settings"].as_array().unwrap();
    assert!(settings.len() > 60, "{}", settings.len());
    for setting in settings {
        let heading = format!("### `{}`", setting["key"].as_str().unwrap());
        assert!(page.contains(&heading), "{heading}");
    }
    assert_eq!(page.matches("\n### `").count(), settings.len());
}

/// Files of configuration in the repository.
const FILES: [&str; 6] = [
    "oncely.default.toml",
    "examples/oncely.toml",
    "examples/rust_charge/oncely.toml",
    "examples/rust_shop/oncely.toml",
    "examples/tour/oncely.toml",
    "examples/webhooks/oncely.toml",
];

#[test]
fn the_schema_knows_each_setting_and_no_other() {
    let schema: Value = serde_json::from_str(&stdout(&oncely("", &["config", "schema"], &[]))).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in FILES {
        let text = std::fs::read_to_string(root.join(name)).unwrap();
        let value: Value = toml::from_str(&text).unwrap();
        let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
    for wrong in [
        serde_json::json!({ "relay": { "bacth": 1 } }),
        serde_json::json!({ "relay": { "batch": 0 } }),
        serde_json::json!({ "mirror": { "precheck": "sometimes" } }),
        serde_json::json!({ "consumers": [{ "tenant": { "heder": "x" } }] }),
    ] {
        assert!(!validator.is_valid(&wrong), "{wrong}");
    }
}

#[test]
fn what_needs_no_server_needs_no_valid_configuration_either() {
    let broken = "this is = not [ TOML";
    for arguments in [
        &["--help"][..],
        &["failed", "requeue", "--help"],
        &["--version"],
        &["config", "docs"],
        &["completions", "fish"],
        &["man"],
    ] {
        let output = oncely(broken, arguments, &[]);
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}: {}", told(&output));
        assert_eq!(told(&output), "", "{arguments:?}");
    }
    let help = stdout(&oncely(broken, &["failed", "list", "--help"], &[]));
    let (examples, usage) =
        (help.find("Examples:\n  oncely failed list").unwrap(), help.find("Usage: ").unwrap());
    assert!(examples < usage, "{help}");
}

#[test]
fn a_shell_completes_verbs_and_names_of_the_configuration() {
    let path = program("oncely").parent().unwrap().display().to_string();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap());
    let scratch = testbed::Scratch::new("completions").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::write(&file, TEXT).unwrap();
    let completed = |words: &str, at: usize| {
        let script = format!(
            "source <(oncely completions bash) && complete -p oncely >/dev/null && COMP_WORDS=({words}) COMP_CWORD={at} COMP_TYPE=9 \
             && f=$(complete -p oncely | sed 's/.*-F \\([^ ]*\\) .*/\\1/') && $f oncely \"${{COMP_WORDS[{at}]}}\" && echo \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash")
            .args(["-c", &script])
            .env("PATH", &path)
            .env("ONCELY_CONFIG", &file)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", told(&output));
        stdout(&output).trim().to_owned()
    };
    assert_eq!(completed("oncely consumers pa", 2), "pause");
    assert_eq!(completed("oncely consumers pause pa", 3), "payments");
    assert_eq!(completed("oncely failed list --queue a", 4), "a");
    assert_eq!(completed("oncely audit list --reason key_c", 4), "key_conflict");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = oncely("", &["completions", shell], &[]);
        assert!(stdout(&output).contains("oncely"), "{shell}: {}", told(&output));
    }
}

#[test]
fn there_is_a_man_page_for_each_verb() {
    let scratch = testbed::Scratch::new("man").unwrap();
    let folder = scratch.path().join("man1");
    let output = oncely("", &["man", "--dir", folder.to_str().unwrap()], &[]);
    assert!(output.status.success(), "{}", told(&output));
    let page = |name: &str| {
        std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(page("oncely.1").contains(".TH oncely 1"));
    let requeue = page("oncely-failed-requeue.1");
    assert!(requeue.contains("dead letters") && requeue.contains("account opened"), "{requeue}");
    assert!(stdout(&oncely("", &["man"], &[])).contains(".TH oncely 1"));
}
