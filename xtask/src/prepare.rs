//! `cargo xtask prepare`: composes the migrations of their functions, and writes `sqlx-data.json` from the queries in the code, checked against a real
//! database.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use testbed::{Database, Postgres};

use crate::{compose, process};

const FILE: &str = "sqlx-data.json";

/// Writes the file anew; with `check`, only compares and fails where it is stale.
pub(crate) async fn run(check: bool) -> anyhow::Result<()> {
    let root = process::root();
    compose::run(&root, check)?;
    let fresh = run_in_database(async |database| snapshot(&root, database).await).await?;
    let path = root.join(FILE);
    if check {
        let stored = std::fs::read_to_string(&path).unwrap_or_default();
        anyhow::ensure!(
            stored == fresh,
            "{FILE} is stale: run `cargo xtask prepare` and commit what it wrote"
        );
        eprintln!("{FILE} is up to date");
    } else {
        std::fs::write(&path, fresh)?;
        eprintln!("wrote {FILE}");
    }
    Ok(())
}

/// Does something with a new database of the server that `DATABASE_URL` names, or of one of our own.
pub(crate) async fn run_in_database<T>(
    what: impl AsyncFnOnce(&Database) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (server, own) = match std::env::var("DATABASE_URL") {
        Ok(url) if !url.is_empty() => (url, None),
        _ => {
            let postgres = Postgres::start(&[]).await?;
            (postgres.url(), Some(postgres))
        }
    };
    let database = Database::create(&server).await?;
    let done = what(&database).await;
    database.drop_now().await?;
    drop(own);
    done
}

async fn snapshot(root: &Path, database: &Database) -> anyhow::Result<String> {
    database.migrate(&root.join("migrations")).await?;
    let folder = root.join("target/sqlx-prepare");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    // Cargo sees neither the database nor the folder: without a touch it would reuse what it compiled before.
    let now = std::time::SystemTime::now();
    for target in ["crates/postgres/src/lib.rs", "crates/postgres/build.rs", "crates/handler/src/lib.rs"] {
        std::fs::File::options().append(true).open(root.join(target))?.set_modified(now)?;
    }
    eprintln!("asking PostgreSQL about each query (cargo check)");
    process::run(
        process::cargo(root)
            .args(["check", "--quiet", "--bins"])
            .args(process::PRODUCT)
            .env("DATABASE_URL", database.url())
            .env("SQLX_OFFLINE", "false")
            .env("SQLX_OFFLINE_DIR", &folder),
    )?;
    merge(&folder)
}

/// One object: `{"db": …, "<hash>": {"query": …, "describe": …}}`, sorted, as sqlx up to 0.6 wrote it.
fn merge(folder: &PathBuf) -> anyhow::Result<String> {
    let mut merged: BTreeMap<String, Value> = BTreeMap::from([("db".to_owned(), json!("PostgreSQL"))]);
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let query: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let hash = query["hash"].as_str().context("a query without a hash")?.to_owned();
        merged.insert(hash, json!({ "query": query["query"], "describe": query["describe"] }));
    }
    anyhow::ensure!(merged.len() > 1, "no query was found: is the build script overriding SQLX_OFFLINE_DIR?");
    Ok(serde_json::to_string_pretty(&merged)? + "\n")
}
