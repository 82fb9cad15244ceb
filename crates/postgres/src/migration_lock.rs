//! The table locks of a migration, which it declares in lines of its own: `-- locks <table> against writes|everybody[, reads all
//! rows|rewrites all rows]`. A test applies each to a real database and compares the declaration with the locks held.

use serde::Serialize;
use sqlx::migrate::Migration;

/// The sessions that wait for a table locked by a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockedSessions {
    /// Writers. Readers continue.
    Writes,
    /// Writers and readers.
    Everybody,
}

/// The work of a migration while it has a table locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LockedWork {
    /// A change of the catalogue alone: takes a moment, for a table of any size.
    Catalogue,
    /// Reads all rows.
    ReadsAllRows,
    /// Rewrites all rows and all indexes.
    RewritesAllRows,
}

/// A table that a migration locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLock {
    /// The table's name with its schema.
    pub table: String,
    /// The sessions that wait.
    pub kept_out: BlockedSessions,
    /// The work that they wait for.
    pub work: LockedWork,
}

/// A line of a migration that begins like a declaration and can't be parsed.
#[derive(Debug, thiserror::Error)]
#[error(
    "migration {version}: {line:?} is not `-- locks <table> against writes|everybody[, reads all rows|rewrites all rows]`"
)]
pub struct UnclearLock {
    version: i64,
    line: String,
}

/// The beginning of a declaration.
const LINE_PREFIX: &str = "-- locks ";

impl TableLock {
    /// Parses a declaration; `None` for any other line.
    fn parse(line: &str) -> Option<Self> {
        let (table, effect) = line.strip_prefix(LINE_PREFIX)?.split_once(" against ")?;
        let (kept_out, work) =
            effect.split_once(", ").map_or((effect, None), |(blocked, work)| (blocked, Some(work)));
        let is_one_word = table.contains('.') && !table.contains(char::is_whitespace);
        Some(Self {
            table: Some(table).filter(|_| is_one_word)?.to_owned(),
            kept_out: match kept_out {
                "writes" => BlockedSessions::Writes,
                "everybody" => BlockedSessions::Everybody,
                _ => return None,
            },
            work: match work {
                None => LockedWork::Catalogue,
                Some("reads all rows") => LockedWork::ReadsAllRows,
                Some("rewrites all rows") => LockedWork::RewritesAllRows,
                Some(_) => return None,
            },
        })
    }
}

impl std::fmt::Display for TableLock {
    /// Writes the line that declares it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocked = match self.kept_out {
            BlockedSessions::Writes => "writes",
            BlockedSessions::Everybody => "everybody",
        };
        let work = match self.work {
            LockedWork::Catalogue => "",
            LockedWork::ReadsAllRows => ", reads all rows",
            LockedWork::RewritesAllRows => ", rewrites all rows",
        };
        write!(f, "{LINE_PREFIX}{} against {blocked}{work}", self.table)
    }
}

/// Parses the declarations of the tables that a migration locks.
///
/// # Errors
/// If a declaration can't be parsed.
pub fn parse_migration_locks(migration: &Migration) -> Result<Vec<TableLock>, UnclearLock> {
    let lines = migration.sql.as_str().lines().filter(|line| line.starts_with(LINE_PREFIX));
    lines
        .map(|line| {
            TableLock::parse(line)
                .ok_or_else(|| UnclearLock { version: migration.version, line: line.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_it_was_written_for_or_nothing() {
        for line in [
            "-- locks oncely.audit against writes",
            "-- locks oncely.audit against everybody",
            "-- locks oncely.audit against writes, reads all rows",
            "-- locks oncely.audit against everybody, rewrites all rows",
        ] {
            assert_eq!(TableLock::parse(line).map(|lock| lock.to_string()).as_deref(), Some(line));
        }
        for line in [
            "-- locks audit against writes",
            "-- locks oncely.audit against readers",
            "-- locks oncely.audit against writes, quickly",
            "-- locks oncely.audit and oncely.events against writes",
            "-- locks oncely.audit",
        ] {
            assert_eq!(TableLock::parse(line), None, "{line}");
        }
    }
}
