//! The shape of the code: imports point one way, and some things are nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::sources::{
    OF_SEVERAL_MODULES, code, crates, files, module, place, root, source, sources, statements, tools,
};

/// Dependencies that only some crates may have. What a crate may use of the others, Cargo says: its manifest lists them, and circles are refused.
const DEPENDENCIES: [(&str, &[&str]); 9] = [
    ("axum", &["console", "http", "lease", "process"]),
    ("clap", &["cli"]),
    ("comfy-table", &["cli"]),
    ("lapin", &["amqp", "cli", "doctor", "ops", "relay", "worker"]),
    ("maud", &["console"]),
    ("ratatui", &["cli"]),
    ("redis", &["mirror"]),
    (
        "sqlx",
        &[
            "cli", "console", "doctor", "handler", "http", "lease", "mirror", "ops", "postgres", "process",
            "relay", "worker",
        ],
    ),
    (
        "tokio",
        &[
            "amqp",
            "cli",
            "console",
            "doctor",
            "failpoint",
            "gateway",
            "handler",
            "http",
            "lease",
            "mirror",
            "net",
            "ops",
            "postgres",
            "process",
            "relay",
            "traces",
            "worker",
        ],
    ),
];

/// A name of a dependency in the list of a manifest that compiles into the crate.
fn depends(manifest: &str, dependency: &str) -> bool {
    let list = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let list = list.split("\n[").next().unwrap_or_default();
    list.lines().any(|line| line.split(['.', ' ', '=']).next() == Some(dependency))
}

#[test]
fn dependencies_are_where_they_belong() {
    let mut seen = BTreeSet::new();
    for (name, folder) in crates() {
        let manifest = std::fs::read_to_string(folder.with_file_name("Cargo.toml")).unwrap();
        for (dependency, allowed) in DEPENDENCIES {
            if depends(&manifest, dependency) {
                assert!(allowed.contains(&name.as_str()), "oncely-{name} must not depend on {dependency}");
                seen.insert((dependency, name.clone()));
            }
        }
    }
    let listed = DEPENDENCIES
        .iter()
        .flat_map(|(dependency, names)| names.iter().map(move |name| (*dependency, (*name).to_owned())));
    assert_eq!(seen, listed.collect(), "a crate no longer needs a dependency that the list allows");
}

/// The files that each file names in its code: by `crate::` or `super::`, through the `pub use` of a folder's mod.rs where there is one.
struct Graph {
    /// Module path to file.
    modules: BTreeMap<Vec<String>, PathBuf>,
    /// What a folder exports, and from which of its files.
    exports: BTreeMap<(Vec<String>, String), Vec<String>>,
}

impl Graph {
    fn of(sources: Vec<PathBuf>) -> Self {
        let mut graph = Self { modules: BTreeMap::new(), exports: BTreeMap::new() };
        for path in sources {
            let (name, inside) = place(&path);
            let mut module = vec![name];
            module.extend(inside);
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            graph.modules.insert(module, path);
        }
        for (module, path) in &graph.modules {
            if is_folder(path) {
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
        for (start, depth) in [("crate::", 0), ("super::super::", 2), ("super::", 1)] {
            for mut used in paths(&text, start) {
                if used[0] == "super" || depth > module.len() {
                    continue;
                }
                let mut whole = match start {
                    "crate::" => module[..1].to_vec(),
                    _ => module[..module.len() - depth].to_vec(),
                };
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
                    None => !is_folder(&self.modules[&found]) && named.insert(found),
                };
            }
        }
        named.remove(module);
        named
    }
}

/// A folder's or a crate's own file, which names its files.
fn is_folder(path: &Path) -> bool {
    ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| path.ends_with(name))
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

/// Fails where files import each other in a circle. They import more than `least` in all.
fn has_no_circles(sources: Vec<PathBuf>, least: usize) {
    let graph = Graph::of(sources);
    let mut open: BTreeMap<Vec<String>, BTreeSet<Vec<String>>> =
        graph.modules.iter().map(|(module, path)| (module.clone(), graph.named_by(module, path))).collect();
    assert!(open.values().map(BTreeSet::len).sum::<usize>() > least);
    // A file that names no other any more is in no circle, nor is one that no other names.
    loop {
        let named: BTreeSet<Vec<String>> = open.values().flatten().cloned().collect();
        let (inner, outer): (BTreeMap<_, _>, BTreeMap<_, _>) =
            open.into_iter().partition(|(module, names)| named.contains(module) && !names.is_empty());
        open = inner;
        if outer.is_empty() {
            break;
        }
        for names in open.values_mut() {
            names.retain(|module| !outer.contains_key(module));
        }
    }
    let left: Vec<String> = open
        .iter()
        .map(|(module, named)| {
            let named: Vec<String> = named.iter().map(|module| module.join("::")).collect();
            format!("{} names {}", module.join("::"), named.join(", "))
        })
        .collect();
    assert!(left.is_empty(), "in a circle:\n{}", left.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    has_no_circles(sources(), 300);
}

#[test]
fn no_files_of_the_tools_import_each_other_in_a_circle() {
    has_no_circles(tools(), 100);
}

#[test]
fn no_folders_of_a_room_import_each_other() {
    let graph = Graph::of(sources());
    let mut seen = BTreeSet::new();
    for (module, path) in &graph.modules {
        for named in graph.named_by(module, path) {
            // Module, folder, file.
            let outer = usize::from(OF_SEVERAL_MODULES.contains(&module[0].as_str()));
            if let ([room, folder, _, ..], [of, other, _, ..]) =
                (module.get(outer..).unwrap_or_default(), named.get(outer..).unwrap_or_default())
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
fn the_core_knows_no_io_and_no_clock() {
    for path in files(&source("core")) {
        let text = code(&path);
        for word in ["Utc::now", "Instant::now", "SystemTime", "std::fs", "std::env"] {
            assert!(!text.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn sql_on_our_tables_is_in_one_place() {
    let mut tables = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("migrations")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let migration = std::fs::read_to_string(path).unwrap();
        let made = migration.lines().filter_map(|line| line.strip_prefix("create table oncely."));
        tables.extend(made.filter_map(|rest| Some(format!("oncely.{}", rest.split([' ', '(']).next()?))));
    }
    assert!(tables.len() > 10 && tables.contains("oncely.events"), "{tables:?}");
    for path in sources() {
        if module(&path) == "postgres" {
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

/// A lane's session rests in its handler's search_path: there a transaction of ours begins with our own.
#[test]
fn a_lanes_transactions_begin_with_our_search_path() {
    let mut plain = Vec::new();
    for path in
        files(&source("worker").join("worker")).into_iter().chain([source("postgres").join("suspect.rs")])
    {
        let text = code(&path);
        let begins = text.lines().filter(|line| line.contains("connection.begin()"));
        plain.extend(begins.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    assert_eq!(plain, Vec::<String>::new(), "use pg::begin");
}

/// A test that is not run proves nothing.
#[test]
fn no_test_is_ignored() {
    let folders = ["tests", "src", "browser", "fuzz", "stores"].map(|name| root().join(name));
    let all = folders.iter().flat_map(|folder| files(folder)).chain(sources()).chain(tools());
    for path in all {
        let text = std::fs::read_to_string(&path).unwrap();
        let ignored = text.lines().any(|line| line.trim_start().starts_with("#[ignore"));
        assert!(!ignored, "{} ignores a test", path.display());
    }
}
