//! Migrations under load: what they lock, who waits behind them, which programs go on.

mod locks;
mod programs;
mod waiting;

use sqlx::migrate::Migration;

fn up() -> impl Iterator<Item = &'static Migration> {
    oncely_postgres::MIGRATOR.iter().filter(|migration| migration.migration_type.is_up_migration())
}

fn file(migration: &Migration) -> String {
    let name = migration.description.replace(' ', "_");
    format!("migrations/{}_{name}.up.sql", migration.version)
}
