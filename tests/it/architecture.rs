//! The shape of the code: imports point one way, and some things are nowhere.

use std::path::{Path, PathBuf};

/// From the upper rooms, which know no I/O and no clock, down to the programs: a room may use those before it.
const ROOMS: [&[&str]; 13] = [
    &["identity", "message", "event", "retry", "fault", "fingerprint", "settlement", "shown"],
    &["reason"],
    &["extract", "outcome", "decide", "blame", "seal", "letter"],
    &["failpoint"],
    &["pg"],
    &["handler"],
    &["config"],
    &["backoff", "telemetry", "shutdown", "watchdog"],
    &["amqp", "mirror"],
    &["preflight"],
    &["maintenance", "heartbeat"],
    &["worker", "relay"],
    // An exit code is said of the command line's errors too; a fuzzer looks into many rooms.
    &["exit", "cli", "lib", "fuzzing"],
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
        let text = code(&path);
        for (number, line) in text.lines().enumerate() {
            let Some(used) = line.split("crate::").nth(1) else { continue };
            let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if used.is_empty() || line.trim_start().starts_with("//") {
                continue;
            }
            looked_at += 1;
            let Some(theirs) = room(&used) else {
                panic!("{}:{}: {used} has no room", path.display(), number + 1)
            };
            assert!(theirs <= own, "{}:{}: {module} must not use {used}", path.display(), number + 1);
        }
    }
    assert!(looked_at > 100);
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
    for path in files(&source()) {
        if module(&path) == "pg" {
            continue;
        }
        let text = code(&path).to_lowercase();
        for table in [
            "oncely.idempotency_keys",
            "oncely.mirror_queue",
            "oncely.audit",
            "oncely.cell",
            "oncely.dead_letters",
            "oncely.operator_actions",
        ] {
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
    for path in files(&source().join("worker")).into_iter().chain([source().join("pg/suspect.rs")]) {
        let text = code(&path);
        let begins = text.lines().filter(|line| line.contains("connection.begin()"));
        plain.extend(begins.map(|line| format!("{}: {}", path.display(), line.trim())));
    }
    // The one whose only statement of ours says of each name where it is.
    assert_eq!(plain.len(), 1, "use pg::begin: {plain:#?}");
}
