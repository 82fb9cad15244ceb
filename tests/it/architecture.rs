//! The shape of the code: imports point one way, and some things are nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From the upper rooms, which know no I/O and no clock, down to the programs: a room may use those before it.
const ROOMS: [&[&str]; 21] = [
    &[
        "identity",
        "message",
        "event",
        "retry",
        "fault",
        "json",
        "fingerprint",
        "settlement",
        "shown",
        "mask",
        "own_headers",
        "durations",
        "trace_parent",
        "units",
        "backoff",
    ],
    &["reason"],
    &["extract", "outcome", "decide", "blame", "signing", "letter", "encryption"],
    &["failpoint"],
    &["server_url", "tls", "url_file"],
    &["pg"],
    &["handler"],
    &["config"],
    &["http_server", "telemetry", "shutdown", "watchdog", "metrics", "witnesses"],
    &["traces"],
    &["amqp", "mirror"],
    &["lease"],
    &["preflight"],
    &["vitals", "doctor"],
    &["process", "maintenance", "heartbeat"],
    &["worker", "relay", "http"],
    &["overview", "testing"],
    &["exit"],
    &["letters", "status", "story", "trail", "erasure"],
    &["console", "gateway"],
    // A fuzzer looks into many rooms.
    &["cli", "lib", "fuzzing"],
];

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// A file's code without its tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// The same without the lines that are comments.
fn statements(path: &Path) -> String {
    let code = code(path);
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    lines.join("\n")
}

fn room(module: &str) -> Option<usize> {
    ROOMS.iter().position(|room| room.contains(&module))
}

fn module(path: &Path) -> String {
    let inside = path.strip_prefix(source()).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

#[test]
fn imports_point_one_way() {
    let mut looked_at = 0;
    for path in files(&source()) {
        let module = module(&path);
        if module == "bin" {
            continue;
        }
        let Some(own) = room(&module) else {
            panic!("{module} has no room in this test: put it where it belongs")
        };
        for used in paths(&statements(&path), "crate::") {
            looked_at += 1;
            let used = &used[0];
            let Some(theirs) = room(used) else { panic!("{}: {used} has no room", path.display()) };
            assert!(theirs <= own, "{}: {module} must not use {used}", path.display());
        }
    }
    assert!(looked_at > 100);
}

/// The files that each file names in its code: by `crate::` or `super::`, through the `pub use` of a folder's mod.rs where there is one.
struct Graph {
    /// Module path to file.
    modules: BTreeMap<Vec<String>, PathBuf>,
    /// What a folder exports, and from which of its files.
    exports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl Graph {
    fn read() -> Self {
        let mut graph = Self { modules: BTreeMap::new(), exports: BTreeMap::new() };
        for path in files(&source()) {
            let inside = path.strip_prefix(source()).unwrap().with_extension("");
            let mut module: Vec<String> =
                inside.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect();
            if module[0] == "bin" || module == ["lib"] {
                continue;
            }
            if module.last().is_some_and(|last| last == "mod") {
                module.pop();
            }
            graph.modules.insert(module, path);
        }
        for (module, path) in &graph.modules {
            if path.ends_with("mod.rs") {
                for used in paths(&code(path), "use ") {
                    let (file, name) = (&used[0], used.last().unwrap());
                    let mut from = module.clone();
                    from.push(file.clone());
                    if graph.modules.contains_key(&from) {
                        graph.exports.insert((module.clone(), name.clone()), from);
                    }
                }
            }
        }
        graph
    }

    /// The modules that a file's code names.
    fn named_by(&self, module: &[String], path: &Path) -> BTreeSet<Vec<String>> {
        let text = statements(path);
        let mut named = BTreeSet::new();
        for (start, depth) in [("crate::", module.len()), ("super::super::", 2), ("super::", 1)] {
            for mut used in paths(&text, start) {
                if used[0] == "super" || depth > module.len() {
                    continue;
                }
                let mut whole = module[..module.len() - depth].to_vec();
                whole.append(&mut used);
                let Some(length) = (1..=whole.len()).rev().find(|n| self.modules.contains_key(&whole[..*n]))
                else {
                    continue;
                };
                let found = whole[..length].to_vec();
                let name = whole.get(length);
                let exported = name.and_then(|name| self.exports.get(&(found.clone(), name.clone())));
                match exported {
                    Some(file) => named.insert(file.clone()),
                    None => !self.modules[&found].ends_with("mod.rs") && named.insert(found),
                };
            }
        }
        named.remove(module);
        named
    }
}

/// The paths after `start`, `{…}` taken apart.
fn paths(text: &str, start: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for piece in text.split(start).skip(1) {
        let path: String = piece.chars().take_while(|c| is_word(*c) || *c == ':').collect();
        let front: Vec<String> =
            path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if (path.is_empty() || path.ends_with("::")) && piece[path.len()..].starts_with('{') {
            let list = piece[path.len() + 1..].split('}').next().unwrap_or_default();
            for name in list.split(',') {
                let name = name.rsplit(" as ").next().unwrap_or_default().trim();
                let mut whole = front.clone();
                whole.extend(name.split("::").filter(|part| !part.is_empty()).map(str::to_owned));
                found.push(whole);
            }
        } else {
            found.push(front);
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let graph = Graph::read();
    let mut open: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> =
        graph.modules.iter().map(|(module, path)| (module.clone(), graph.named_by(module, path))).collect();
    assert!(open.values().map(BTreeSet::len).sum::<usize>() > 300);
    // Whoever names nobody any more is in no circle.
    loop {
        let done: Vec<Vec<String>> =
            open.iter().filter(|(_, named)| named.is_empty()).map(|(module, _)| module.clone()).collect();
        if done.is_empty() {
            break;
        }
        for module in &done {
            open.remove(module);
        }
        for named in open.values_mut() {
            named.retain(|module| !done.contains(module));
        }
    }
    let left: Vec<String> = open
        .iter()
        .map(|(module, named)| {
            let named: Vec<String> = named.iter().map(|module| module.join("::")).collect();
            format!("{} names {}", module.join("::"), named.join(", "))
        })
        .collect();
    assert!(left.is_empty(), "in a circle, or on top of one:\n{}", left.join("\n"));
}

#[test]
fn no_folders_of_a_room_import_each_other() {
    let graph = Graph::read();
    let mut seen = BTreeSet::new();
    for (module, path) in &graph.modules {
        for named in graph.named_by(module, path) {
            // Room, folder, file.
            if let ([room, folder, _, ..], [of, other, _, ..]) = (&module[..], &named[..])
                && room == of
                && folder != other
            {
                seen.insert((format!("{room}/{folder}"), format!("{of}/{other}")));
            }
        }
    }
    assert!(seen.len() >= 2, "{seen:?}");
    for (folder, other) in &seen {
        assert!(!seen.contains(&(other.clone(), folder.clone())), "{folder} and {other} import each other");
    }
}

#[test]
fn the_upper_rooms_know_no_io_and_no_clock() {
    for path in files(&source()) {
        if room(&module(&path)).is_none_or(|room| room > 2) {
            continue;
        }
        let text = code(&path);
        for word in [
            "sqlx",
            "lapin",
            "redis::",
            "tokio",
            "Utc::now",
            "Instant::now",
            "SystemTime",
            "std::fs",
            "std::env",
        ] {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn sql_on_our_tables_is_in_one_place() {
    let mut tables = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let migration = std::fs::read_to_string(path).unwrap();
        let made = migration.lines().filter_map(|line| line.strip_prefix("create table oncely."));
        tables.extend(made.filter_map(|rest| Some(format!("oncely.{}", rest.split([' ', '(']).next()?))));
    }
    assert!(tables.len() > 10 && tables.contains("oncely.events"), "{tables:?}");
    for path in files(&source()) {
        if module(&path) == "pg" {
            continue;
        }
        let text = code(&path).to_lowercase();
        for table in &tables {
            for verb in ["from ", "into ", "update ", "join "] {
                assert!(!text.contains(&format!("{verb}{table}")), "{} has SQL on {table}", path.display());
            }
        }
    }
}

/// Whoever brings another cache changes one room.
#[test]
fn redis_is_spoken_to_in_one_room() {
    for path in files(&source()) {
        let is_of_the_mirror = module(&path) == "mirror";
        // Not a room's own module of that name.
        let names = statements(&path).replace("redis::look(", "").contains("redis::");
        assert!(is_of_the_mirror || !names, "{} speaks to Redis", path.display());
    }
}

/// A lane's session rests in its handler's search_path: there a transaction of ours begins with our own.
#[test]
fn a_lanes_transactions_begin_with_our_search_path() {
    let mut plain = Vec::new();
    for path in files(&source().join("worker")).into_iter().chain([source().join("pg/suspect.rs")]) {
        let text = code(&path);
        let begins = text.lines().filter(|line| line.contains("connection.begin()"));
        plain.extend(begins.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert_eq!(plain, Vec::<String>::new(), "use pg::begin");
}
