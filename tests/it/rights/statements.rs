//! Each statement that a program may send is one that its role may run, however seldom it is sent.
//!
//! The sources are read as text: a function of `crates/postgres` belongs to a program if a module of that program names it, or another function of
//! `crates/postgres` that belongs to it does. PostgreSQL checks privileges when it makes a plan executable, so `EXPLAIN` is enough.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use regex::Regex;

use super::code_of;
use crate::sources::{self, module, statements};
use crate::support::World;

const WORKER: &[&str] = &["worker", "gateway", "http", "lease", "handler", "heartbeat", "mirror", "traces"];
const RELAY: &[&str] = &["relay", "maintenance", "heartbeat", "mirror", "traces"];
const OPERATOR: &[&str] =
    &["cli", "console", "letters", "overview", "status", "story", "trail", "doctor", "preflight"];

/// What only the schema's owner does (`oncely tenant erase`), and embedders' tests.
const OTHERS: &[&str] = &["erasure", "testing"];

/// Functions that a program names and never calls with its role's login, by role.
const ELSEWHERE: &[(&str, &[&str])] = &[
    // `list_events_since` is for embedders' tests; `record_relay_stats` is the relay's.
    ("worker", &["list_events_since", "record_relay_stats"]),
    // Workers' heartbeats and traces, and methods of iterators by the same names.
    ("relay", &["count", "list_pauses", "read_first_runs", "read_signing_secrets", "record_stats"]),
    // Only the schema's owner does it (`migrate`).
    ("operator", &["default_partition_has_rows"]),
];

/// A function of `crates/postgres`.
#[derive(Default)]
struct Function {
    is_method: bool,
    body: String,
    statements: Vec<String>,
}

/// The code of a module, file by file, without comments and tests.
fn sources(name: &str) -> Vec<String> {
    let found: Vec<_> = sources::sources().into_iter().filter(|path| module(path) == name).collect();
    assert!(!found.is_empty(), "{name}");
    found.iter().map(|path| statements(path)).collect()
}

fn functions(root: &Path) -> BTreeMap<String, Function> {
    let head = Regex::new(r"\n( *)(?:pub(?:\([a-z]+\))? )?(?:async )?fn (\w+)").unwrap();
    let written =
        Regex::new(r##"query(?:_as|_scalar)?!\(\s*(?:\w+,\s*)?(?:r#"([^#]*)"#|"((?:[^"\\]|\\(?:\n|.))*)")"##)
            .unwrap();
    let in_file = Regex::new(r#"query_file(?:_as|_scalar)?!\(\s*(?:\w+,\s*)?"([^"]+)""#).unwrap();
    let continued = Regex::new(r"\\\n\s*").unwrap();
    let mut found: BTreeMap<String, Function> = BTreeMap::new();
    for text in sources("postgres") {
        let heads: Vec<_> = head.captures_iter(&text).collect();
        for (at, own) in heads.iter().enumerate() {
            let end = heads.get(at + 1).map_or(text.len(), |next| next.get(0).unwrap().start());
            let body = &text[own.get(0).unwrap().end()..end];
            let function = found.entry(own[2].to_owned()).or_default();
            function.is_method |= !own[1].is_empty();
            function.body.push_str(body);
            for statement in written.captures_iter(body) {
                let statement = match statement.get(1) {
                    Some(raw) => raw.as_str().to_owned(),
                    None => continued.replace_all(&statement[2], "").replace("\\\"", "\""),
                };
                function.statements.push(statement);
            }
            for file in in_file.captures_iter(body) {
                function
                    .statements
                    .push(std::fs::read_to_string(root.join("crates/postgres").join(&file[1])).unwrap());
            }
        }
    }
    found
}

/// The functions that a text names: `pg::name`, those of `use …::pg::{…}`, methods; in `crates/postgres` also those without a path.
fn named(text: &str, functions: &BTreeMap<String, Function>, is_pg: bool) -> BTreeSet<String> {
    let path = Regex::new(r"\b(?:pg|oncely_postgres)::(\w+)").unwrap();
    let list = Regex::new(r"\b(?:pg|oncely_postgres)::\{([^}]*)\}").unwrap();
    let method = Regex::new(r"(?:\.|::)(\w+)\(").unwrap();
    let plain = Regex::new(r"(?:^|[^.\w])(\w+)\(").unwrap();
    let mut names: BTreeSet<&str> =
        path.captures_iter(text).map(|found| found.get(1).unwrap().as_str()).collect();
    for names_of_list in list.captures_iter(text) {
        let all = names_of_list.get(1).unwrap().as_str().split(',');
        names.extend(all.map(|name| name.split(" as ").next().unwrap_or_default().trim()));
    }
    if is_pg {
        names.extend(plain.captures_iter(text).map(|found| found.get(1).unwrap().as_str()));
    }
    let methods = method.captures_iter(text).map(|found| found.get(1).unwrap().as_str());
    let methods = methods.filter(|name| functions.get(*name).is_some_and(|function| function.is_method));
    let names = names.into_iter().filter(|name| functions.contains_key(*name));
    names.chain(methods).map(str::to_owned).collect()
}

/// The functions that modules name.
fn named_by(modules: &[&str], functions: &BTreeMap<String, Function>) -> Vec<String> {
    let texts = modules.iter().flat_map(|module| sources(module));
    texts.flat_map(|text| named(&text, functions, false)).collect()
}

/// These functions, and all that they call.
fn reached(mut open: Vec<String>, functions: &BTreeMap<String, Function>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    while let Some(name) = open.pop() {
        if found.insert(name.clone()) {
            open.extend(named(&functions[&name].body, functions, true));
        }
    }
    found
}

#[tokio::test]
async fn a_program_may_run_each_of_its_statements() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let functions = functions(root);
    let mut world = World::new().await;
    let number = Regex::new(r"\$(\d+)").unwrap();
    let (mut seen, mut forbidden) = (0, Vec::new());
    let all: BTreeSet<String> = sources::sources().iter().map(|path| module(path)).collect();
    let listed = [WORKER, RELAY, OPERATOR, OTHERS, &["postgres"]].concat();
    for name in all.iter().filter(|name| !listed.contains(&name.as_str())) {
        // Methods have names that others have, too.
        let mut called = named_by(&[name], &functions);
        called.retain(|name| !functions[name].is_method);
        let found = reached(called, &functions);
        let sent = found.iter().find(|name| !functions[*name].statements.is_empty());
        assert_eq!(sent, None, "{name} sends statements: say in this test by which role");
    }
    super::run(&mut world, "set plan_cache_mode = force_generic_plan").await;
    for (role, modules) in [("worker", WORKER), ("relay", RELAY), ("operator", OPERATOR)] {
        let elsewhere = ELSEWHERE.iter().find(|(of, _)| *of == role).map_or(&[][..], |(_, names)| names);
        let mut unneeded: BTreeSet<&str> = elsewhere.iter().copied().collect();
        for name in reached(named_by(modules, &functions), &functions) {
            for statement in functions[&name].statements.iter().filter(|sql| !sql.trim().starts_with("set "))
            {
                let arguments =
                    number.captures_iter(statement).map(|found| found[1].parse::<usize>().unwrap());
                let nulls = vec!["null"; arguments.max().unwrap_or(0)].join(", ");
                let execute = if nulls.is_empty() { "s".to_owned() } else { format!("s({nulls})") };
                super::run(&mut world, &format!("prepare s as {statement}; set role oncely_{role}")).await;
                let code = code_of(&mut world.sql, &format!("explain execute {execute}")).await;
                super::run(&mut world, "reset role; deallocate s").await;
                seen += 1;
                match code {
                    None => {}
                    Some(code) if code == "42501" && elsewhere.contains(&name.as_str()) => {
                        unneeded.remove(name.as_str());
                    }
                    Some(code) => forbidden.push(format!("oncely_{role}: {name}: {code}")),
                }
            }
        }
        assert!(unneeded.is_empty(), "{role} may run {unneeded:?}: take them from the list");
    }
    assert!(seen > 150, "{seen}");
    assert!(forbidden.is_empty(), "{forbidden:#?}");
}
