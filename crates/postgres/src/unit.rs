//! The tables that a statement reads which walks along an index, and locks rows on its way.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use sqlx::types::Json;

/// The tables of one unit of work. PostgreSQL has one unit, the tables of the schema `oncely`. An engine that spreads tables over nodes has
/// one for each part of the tables that the server keeps: it can't lock rows in an order across parts, nor walk along an index of all.
///
/// Only reads and locks name a unit's tables. Changes name those of the schema, so that the engine can move a part meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    name: String,
    /// Tables by the name of the schema's table that each is a part of; empty where they are the same.
    tables: BTreeMap<String, String>,
}

/// Lists the units of this server, in the order of their names.
///
/// # Errors
/// If the statement fails, or a name is not one of a table.
pub async fn list_units(connection: &mut PgConnection) -> sqlx::Result<Vec<Unit>> {
    let rows = sqlx::query!(
        r#"select u.unit as "name!", u.tables as "tables!: Json<BTreeMap<String, String>>" from oncely.units() as u order by u.unit"#
    )
    .fetch_all(connection)
    .await?;
    rows.into_iter().map(|row| Unit::new(row.name, row.tables.0)).collect()
}

impl Unit {
    fn new(name: String, tables: BTreeMap<String, String>) -> sqlx::Result<Self> {
        match tables.values().all(|table| is_qualified_name(table)) {
            true => Ok(Self { name, tables }),
            false => Err(sqlx::Error::Protocol("oncely.units names no table".into())),
        }
    }

    /// Returns its name for functions that take one.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the statement for this unit's tables; `None` if they are those of the schema. A table's name can't be a parameter. The names
    /// come from the server's catalogue.
    pub(crate) fn rewrite(&self, statement: &str) -> Option<String> {
        if self.tables.is_empty() {
            return None;
        }
        let mut parts = statement.split("oncely.");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|character| !is_name(character)).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            match self.tables.get(name) {
                Some(table) => text.push_str(table),
                None => {
                    text.push_str("oncely.");
                    text.push_str(name);
                }
            }
            text.push_str(rest);
        }
        // The marks by which sqlx's macros know that a column is not null.
        Some(text.replace("!\"", "\""))
    }
}

fn is_name(character: char) -> bool {
    character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_'
}

fn is_qualified_name(table: &str) -> bool {
    let is_valid = |name: &str| !name.is_empty() && name.chars().all(is_name);
    table.split_once('.').is_some_and(|(schema, name)| is_valid(schema) && is_valid(name))
}

/// Fetches all rows of a file's statement from the tables of a unit. The types are checked against those of the schema.
macro_rules! fetch_from_unit {
    ($row:ident, $file:literal, $unit:expr, $connection:expr $(, $argument:expr)* $(,)?) => {
        match $unit.rewrite(include_str!(concat!("../", $file))) {
            None => sqlx::query_file_as!($row, $file $(, $argument)*).fetch_all($connection).await,
            Some(text) => {
                sqlx::query_as::<_, $row>(sqlx::AssertSqlSafe(text))$(.bind($argument))*.fetch_all($connection).await
            }
        }
    };
}
pub(crate) use fetch_from_unit;

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(tables: &[(&str, &str)]) -> sqlx::Result<Unit> {
        Unit::new(
            "u".to_owned(),
            tables.iter().map(|(name, table)| ((*name).to_owned(), (*table).to_owned())).collect(),
        )
    }

    #[test]
    fn a_statement_names_the_tables_of_its_unit() {
        let statement =
            r#"select e.id as "id!", oncely.bounded(e.at) from oncely.events as e, oncely.events_old"#;
        assert_eq!(Unit::default().rewrite(statement), None);
        let unit = unit(&[("events", "oncely.events_102008"), ("audit", "oncely.audit_102009")]).unwrap();
        let expected =
            r#"select e.id as "id", oncely.bounded(e.at) from oncely.events_102008 as e, oncely.events_old"#;
        assert_eq!(unit.rewrite(statement).as_deref(), Some(expected));
    }

    #[test]
    fn only_names_of_tables_are_taken() {
        for table in ["oncely.events; drop", "events", "oncely.", "oncely.\"e\"", "oncely.e.f"] {
            assert!(unit(&[("events", table)]).is_err(), "{table}");
        }
    }
}
