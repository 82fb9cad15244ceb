//! What the documents name is there, where they link to is something, and their examples are those that run here.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testbed::{Database, VirtualHost};

use crate::support::{Login, World, message, program, servers};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| line.split("fn ").nth(1)?.split(['(', '<']).next());
            found.extend(names.map(str::to_owned));
        }
    }
}

/// Texts between backticks that look like a test's name: a sentence in one word.
fn named(text: &str) -> BTreeSet<&str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.matches('_').count() >= 4
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        })
        .collect()
}

#[test]
fn every_test_that_proves_a_failure_mode_is_there() {
    let mut there = BTreeSet::new();
    for folder in ["tests", "testbed/tests", "crates", "stores", "src"] {
        functions(&root().join(folder), &mut there);
    }
    // What each role can't do, line by line.
    let text = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(lines.len() > 10, "{}", lines.len());
    for line in lines {
        let named = named(line);
        assert!(!named.is_empty(), "SECURITY.md: no test shows {line}");
        let gone: Vec<_> = named.into_iter().filter(|name| !there.contains(*name)).collect();
        assert!(gone.is_empty(), "SECURITY.md names tests that are not there: {gone:?}");
    }
    for (page, least) in [("failure-modes.md", 40), ("lease-stores.md", 8)] {
        let text = std::fs::read_to_string(root().join("docs/src/explanation").join(page)).unwrap();
        let named = named(&text);
        assert!(named.len() > least, "{page}: {}", named.len());
        let gone: Vec<_> = named.into_iter().filter(|name| !there.contains(*name)).collect();
        assert!(gone.is_empty(), "{page} names tests that are not there: {gone:?}");
    }
}

#[test]
fn every_proof_that_a_cell_names_is_listed() {
    let text = std::fs::read_to_string(root().join("docs/src/explanation/failure-modes.md")).unwrap();
    let (cells, list) = text.split_once("## The tests").unwrap();
    let marks = |text: &str| -> BTreeSet<String> {
        text.split('[')
            .skip(1)
            .filter_map(|rest| rest.split_once(']'))
            .map(|(mark, _)| mark.to_owned())
            .filter(|mark| mark.len() <= 2)
            .collect()
    };
    let (used, listed) = (marks(cells), marks(list));
    assert_eq!(used, listed, "cells and list name the same proofs");
}

/// All documents: those of the book and those beside the code.
fn documents() -> Vec<PathBuf> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_foreign = path.ends_with("node_modules");
            if path.is_dir() && !is_foreign {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .map(|name| root().join(name))
        .into();
    collect(&root().join("docs"), &mut found);
    collect(&root().join("examples"), &mut found);
    found
}

/// The text without its blocks of code.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The names that a page's headings can be linked by.
fn places(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter_map(|line| line.strip_prefix('#'));
    headings
        .map(|heading| {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// What stands in the round brackets behind `](`, outside of code.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    let spans = text.split('`').step_by(2).collect::<Vec<_>>().join("");
    spans
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.to_owned())
        .collect()
}

fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn every_link_leads_somewhere() {
    let (mut count, mut broken) = (0, Vec::new());
    let book = root().join("docs/src");
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in links(&text) {
            if ["http:", "https:", "mailto:"].iter().any(|scheme| link.starts_with(scheme)) {
                continue;
            }
            count += 1;
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                _ => plain(&path.parent().unwrap().join(file)),
            };
            let is_there = match place {
                "" => target.exists(),
                _ => std::fs::read_to_string(&target).is_ok_and(|text| places(&text).contains(place)),
            };
            // The built book has no other pages than its own.
            if !is_there || (path.starts_with(&book) && !target.starts_with(&book)) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(count > 100, "{count}");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let summary = std::fs::read_to_string(root().join("docs/src/SUMMARY.md")).unwrap();
    let book = root().join("docs/src");
    let listed: BTreeSet<PathBuf> = links(&summary).into_iter().map(|link| book.join(link)).collect();
    let pages =
        documents().into_iter().filter(|path| path.starts_with(&book) && !path.ends_with("SUMMARY.md"));
    assert_eq!(pages.collect::<BTreeSet<_>>(), listed);
}

/// The part of a file between `ANCHOR: name` and `ANCHOR_END: name`, without such lines.
fn part(file: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let begin = text.lines().position(|line| line.trim_end().ends_with(&format!("ANCHOR: {name}")))?;
    let end = text.lines().position(|line| line.trim_end().ends_with(&format!("ANCHOR_END: {name}")))?;
    let lines = text.lines().skip(begin + 1).take(end.checked_sub(begin + 1)?);
    Some(lines.filter(|line| !line.contains("ANCHOR")).collect::<Vec<_>>().join("\n"))
}

#[test]
fn every_include_of_the_book_is_there() {
    let mut count = 0;
    for path in documents() {
        let text = std::fs::read_to_string(&path).unwrap();
        for include in text.split("{{#include ").skip(1).filter_map(|rest| rest.split_once("}}")) {
            let (file, anchor) = include.0.split_once(':').unwrap_or((include.0, ""));
            let file = plain(&path.parent().unwrap().join(file));
            let is_there = if anchor.is_empty() { file.exists() } else { part(&file, anchor).is_some() };
            assert!(is_there, "{}: {}", path.display(), include.0);
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
}

#[test]
fn the_tour_reads_in_the_clone_and_shows_what_the_test_runs() {
    let text = std::fs::read_to_string(root().join("docs/src/tutorial/tour.md")).unwrap();
    assert!(
        !text.contains("{{#"),
        "the tour's commands stand in the page: who reads it in the clone sees no includes"
    );
    let tour = root().join("examples/tour");
    for (file, name) in [
        ("tour.sh", "setup"),
        ("tour.sh", "run"),
        ("tour.sh", "other"),
        ("tour.sh", "look"),
        ("tour.sh", "stop"),
        ("oncely.toml", "consumer"),
        ("payments.sql", "handler"),
    ] {
        let run = part(&tour.join(file), name).unwrap();
        assert!(text.contains(&run), "{file}:{name} in docs/src/tutorial/tour.md:\n{run}");
    }
    for file in ["check.txt", "explain.txt"] {
        let printed = std::fs::read_to_string(tour.join(file)).unwrap();
        assert!(text.contains(printed.trim_end()), "{file} in docs/src/tutorial/tour.md:\n{printed}");
    }
}

#[test]
fn the_readme_is_short_and_its_examples_are_those_that_run() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 130, "{}", text.lines().count());
    let mut count = 0;
    for rest in text.split("<!-- examples/").skip(1) {
        let (source, block) = rest.split_once(" -->\n```").unwrap();
        let (file, anchor) = source.split_once(':').unwrap();
        let code = block.split_once('\n').unwrap().1.split_once("\n```").unwrap().0;
        let run = part(&root().join("examples").join(file), anchor).unwrap_or_else(|| panic!("{source}"));
        assert_eq!(code, run, "{source}");
        count += 1;
    }
    assert_eq!(count, 3);
}

async fn run_file(database: &Database, name: &str) {
    let text = std::fs::read_to_string(root().join("examples").join(name)).unwrap();
    let mut connection = database.connect().await.unwrap();
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut connection).await;
    done.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[tokio::test]
async fn the_sql_of_the_book_runs() {
    let mut world = World::new().await;
    run_file(&world.database, "tour/payments.sql").await;
    for name in ["batch_handler", "emit_from_handler", "claim", "emit", "audit", "listing"] {
        run_file(&world.database, &format!("sql/{name}.sql")).await;
    }
    assert_eq!(world.count("select count(*) from shop.invoices").await, 1);
    let completed =
        "select count(*) from oncely.idempotency_keys where consumer = 'invoices' and status = 'COMPLETED'";
    assert_eq!(world.count(completed).await, 1);
    assert_eq!(world.count("select count(*) from oncely.events where ordering_key = 'order-1182'").await, 1);

    // Both forms of the handler, as a worker calls them.
    world.consumer("batch", "handler = { function = \"app.capture_payments\", batch = true }");
    world.consumer("events", "handler = { function = \"app.capture_and_tell\" }");
    world.apply_topology().await;
    let worker = world.start("worker");
    for name in ["batch", "events"] {
        world.publish(name, message("acme", "order-1"), r#"{"order": "1", "amount": 20}"#).await;
    }
    world.wait_for("select count(*) from app.payments", 2).await;
    world.wait_for("select count(*) from oncely.events where exchange = 'payments'", 1).await;
    world.stop(worker).await;
}

#[tokio::test]
async fn the_rights_of_the_book_can_be_granted() {
    let mut world = World::new().await;
    let login = Login::create(&mut world, "oncely_consumer").await;
    let text = std::fs::read_to_string(root().join("examples/sql/rights.sql")).unwrap();
    let text = text.replace("'shop'", &format!("'{}'", login.name));
    sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut world.sql).await.unwrap();
    assert_eq!(world.count("select count(*) from oncely.rights where verb = 'consume'").await, 1);
    assert_eq!(world.count("select count(*) from oncely.rights where verb = 'emit'").await, 0);
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn keys_that_were_processed_before_oncely_are_duplicates_once_they_are_seeded() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.configure("[audit]\nduplicates = true");
    world.apply_topology().await;
    let before = "create schema if not exists app; create table app.processed_before (tenant text not null, message_id text not null);
        insert into app.processed_before values ('acme', 'old-1'), ('acme', 'old-2'), ('acme', 'old-2')";
    sqlx::raw_sql(before).execute(&mut world.sql).await.unwrap();
    run_file(&world.database, "sql/seed_keys.sql").await;
    run_file(&world.database, "sql/seed_keys.sql").await;
    let seeded = "select count(*) from oncely.processed_keys where consumer = 'payments' and worker = 'seed'";
    assert_eq!(world.count(seeded).await, 2);
    let worker = world.start("worker");
    for key in ["old-1", "old-2", "new-1"] {
        world.publish("payments", message("acme", key), "{}").await;
    }
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 2).await;
    world
        .wait_for("select count(*) from oncely.audit where outcome = 'completed' and key = 'new-1'", 1)
        .await;
    world.stop(worker).await;
}

/// What differs from run to run: numbers, ids, times, servers.
fn masked(text: &str) -> Vec<String> {
    let mask = |line: &str| {
        // Who knows the duplicate, and whether the mirror has the key already, is a matter of milliseconds.
        let is_mirror = line.trim_start().starts_with("mirror");
        let quick = line.contains("duplicate") || is_mirror;
        let words = line.split_whitespace().map(|word| match word.chars().any(|c| c.is_ascii_digit()) {
            true => "#",
            false if quick && word != "duplicate," && !(is_mirror && word == "mirror") => "#",
            false => word,
        });
        words.collect::<Vec<_>>().join(" ")
    };
    text.lines().map(mask).filter(|line| !line.is_empty() && !line.starts_with("mirror")).collect()
}

#[tokio::test]
async fn the_tour_does_what_the_book_shows() {
    // Its queue has a fixed name.
    let broker = VirtualHost::create().await.unwrap();
    let urls = servers().await.urls().clone();
    let database = Database::create(&urls.postgres).await.unwrap();
    let folder = program("oncely").parent().unwrap().to_path_buf();
    let folder = std::fs::canonicalize(folder).unwrap();
    let path = std::env::join_paths(
        std::iter::once(folder).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let mut tour = Command::new("bash");
    tour.arg("examples/tour/tour.sh")
        .current_dir(root())
        .env("PATH", path.unwrap())
        .env("ONCELY_CONFIG", "examples/tour/oncely.toml")
        .env("DATABASE_URL", database.url())
        .env("AMQP_URL", broker.url())
        .env("REDIS_URL", &urls.redis);
    let tour = tokio::task::spawn_blocking(move || tour.output().unwrap());
    let output = tokio::time::timeout(Duration::from_secs(120), tour).await.expect("in time").unwrap();
    let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{told}");
    let printed = masked(&out);
    for shown in ["check.txt", "explain.txt"] {
        let text = std::fs::read_to_string(root().join("examples/tour").join(shown)).unwrap();
        for line in masked(&text) {
            assert!(printed.contains(&line), "{shown} shows {line:?}, and the tour prints\n{out}");
        }
    }
    database.drop_now().await.unwrap();
}

/// What stands in the first column of the table that begins with `head`, in backticks.
fn first_column(page: &str, head: &str) -> Vec<String> {
    let rows = page.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| line.split('`').nth(1).expect("a word in backticks").to_owned())
        .collect()
}

#[test]
fn the_pages_name_the_outcomes_and_reasons_that_programs_get() {
    let read = |path: &str| {
        std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    };
    let reference = first_column(&read("docs/src/reference/sql.md"), "| outcome | meaning | you |");
    let guide = first_column(&read("docs/src/how-to/other-languages.md"), "| `claim` says | you |");
    assert_eq!(guide, reference);
    let claim = read("migrations/functions/claim.sql");
    for outcome in &reference {
        assert!(claim.contains(&format!("outcome := '{outcome}'")), "claim never answers {outcome}");
    }
    let reasons = first_column(&read("docs/src/how-to/events.md"), "| reason | why |");
    let code = read("crates/relay/src/relay/events.rs");
    for reason in &reasons {
        assert!(code.contains(&format!("\"{reason}\"")), "the relay never says {reason}");
    }
    assert!(reference.len() == 5 && reasons.len() >= 9, "{reference:?} {reasons:?}");
}
