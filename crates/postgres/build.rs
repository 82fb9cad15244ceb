//! Unpacks `sqlx-data.json`, the one-file snapshot of all queries, to where sqlx's macros look for them, so that the crate
//! builds with no database at hand. With `SQLX_OFFLINE=false` (as `cargo xtask prepare` sets it) the macros ask the
//! database that `DATABASE_URL` names instead.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const SNAPSHOT: &str = "sqlx-data.json";

fn main() -> Result<(), Box<dyn Error>> {
    // Another crate builds by this file, too, and embeds no migrations; Cargo would run it each time for a path that isn't there.
    for path in [SNAPSHOT, "migrations"].into_iter().filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    for name in ["SQLX_OFFLINE", "SQLX_OFFLINE_DIR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let live = matches!(env::var("SQLX_OFFLINE").as_deref(), Ok("false" | "0"));
    // A folder that another program chose (cargo sqlx prepare does) stays its own.
    if live || env::var_os("SQLX_OFFLINE_DIR").is_some() {
        return Ok(());
    }
    let folder = PathBuf::from(env::var("OUT_DIR")?).join("sqlx");
    if folder.exists() {
        // Or queries deleted from the snapshot would survive here.
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let text = fs::read_to_string(SNAPSHOT)
        .map_err(|error| format!("sqlx-data.json: {error}; run `cargo xtask prepare`"))?;
    let snapshot: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text)
        .map_err(|error| format!("sqlx-data.json: {error}; run `cargo xtask prepare`"))?;
    let database =
        snapshot.get("db").cloned().ok_or("sqlx-data.json names no \"db\"; run `cargo xtask prepare`")?;
    for (hash, query) in snapshot.iter().filter(|(name, _)| *name != "db") {
        let mut query = query.clone();
        query["db_name"] = database.clone();
        query["hash"] = serde_json::Value::from(hash.as_str());
        fs::write(folder.join(format!("query-{hash}.json")), query.to_string())?;
    }
    println!("cargo::rustc-env=SQLX_OFFLINE_DIR={}", folder.display());
    println!("cargo::rustc-env=SQLX_OFFLINE=true");
    Ok(())
}
