//! What an error of PostgreSQL means: one table, by SQLSTATE and never by text.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::PgDatabaseError;

use super::condition::{condition, is_written};
use crate::fault::{Fault, FaultClass};
use crate::plant::planted;

/// The connection or the server is away; whether a commit in flight happened is unknown. No message is to blame.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Outage(#[source] pub sqlx::Error);

impl Outage {
    /// Did we stop waiting, rather than hear that the connection is gone?
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(&self.0, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
    }
}

/// An error of PostgreSQL.
#[derive(Debug)]
pub enum PgFault {
    /// Nobody's fault; the session is over.
    Outage(Outage),
    /// The statement failed; the session goes on.
    Fault(Fault),
}

/// Classifies an error.
///
/// | SQLSTATE | class |
/// | --- | --- |
/// | none (I/O, TLS, protocol), 08 connection, 57P0x shutdown, 25006 read-only (a standby) | outage |
/// | 40 rollback, 55P03 lock timeout, 57014 cancelled (statement timeout) | transient |
/// | 53 resources, 58 system, 42 and 3F (missing object, no grant), 28 login, XX internal | environment |
/// | 22 data, 54 limits | poison |
/// | `ONC01` (`oncely.reject`) | rejected |
/// | `ONC02` (body is not JSON) | not JSON |
/// | `ONC04`, `ONC05` (`oncely.emit`: an event that is too large, or can't be sent) | poison |
/// | `ONC11`, `ONC15` (`oncely.claim`, `oncely.complete`: arguments that can't be right) | poison |
/// | everything else, 23 (constraints) and P0001 (`raise`) with it | transient, so bounded by the attempts |
///
/// Source: PostgreSQL's Appendix A, "PostgreSQL Error Codes".
#[must_use]
pub fn classify(error: sqlx::Error) -> PgFault {
    match fault_of(&error) {
        Some(fault) => PgFault::Fault(fault),
        None => PgFault::Outage(Outage(error)),
    }
}

/// Is this an outage, by the same table?
#[must_use]
pub fn is_outage(error: &sqlx::Error) -> bool {
    fault_of(error).is_none()
}

fn fault_of(error: &sqlx::Error) -> Option<Fault> {
    if let Some(database) = error.as_database_error() {
        let code = database.code().map(|code| code.into_owned()).unwrap_or_default();
        let class = class_of(&code)?;
        let place = database.try_downcast_ref::<PgDatabaseError>().map(place_of).unwrap_or_default();
        let text = told(&code, &place, database.message());
        return Some(Fault::new(class, Some(code), text));
    }
    match error {
        // What could not be read may stand in the text.
        sqlx::Error::ColumnDecode { index, .. } if !SERVER_TEXTS.load(Ordering::Relaxed) => {
            Some(Fault::new(FaultClass::Transient, None, format!("column {index} could not be decoded")))
        }
        // Our own decoding or a handler's: not a matter of the connection.
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnIndexOutOfBounds { .. }
        | sqlx::Error::TypeNotFound { .. }
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_) => Some(Fault::new(FaultClass::Transient, None, error.to_string())),
        _ => None,
    }
}

/// Are PostgreSQL's own texts told, too? Of the whole process.
static SERVER_TEXTS: AtomicBool = AtomicBool::new(false);

/// Whether PostgreSQL's own texts of errors go to log, trail and dead letters. They may hold what a message held (a failed cast says
/// what it failed on), so by default only the condition is told, with the names that the server gives apart from its text.
pub(crate) fn tell_server_texts(told: bool) {
    SERVER_TEXTS.store(told, Ordering::Relaxed);
}

/// What people are told of an error: PostgreSQL's text only where somebody wrote it on purpose (`raise exception`,
/// `oncely.reject`), or where the configuration says so.
pub(crate) fn told(code: &str, place: &str, text: &str) -> String {
    match is_written(code) || SERVER_TEXTS.load(Ordering::Relaxed) {
        true => text.to_owned(),
        false if place.is_empty() => condition(code).to_owned(),
        false => format!("{}: {place}", condition(code)),
    }
}

/// Names of the schema, which the server gives apart from its text.
fn place_of(error: &PgDatabaseError) -> String {
    let names = [("constraint", error.constraint()), ("table", error.table()), ("column", error.column())];
    let named = names.into_iter().filter_map(|(what, name)| Some(format!("{what} {}", name?)));
    named.collect::<Vec<_>>().join(", ")
}

/// The class of a SQLSTATE, or `None` for an outage.
#[must_use]
pub fn class_of(code: &str) -> Option<FaultClass> {
    Some(match (code, code.get(..2).unwrap_or_default()) {
        ("ONC01", _) => FaultClass::Rejected,
        ("ONC02", _) => FaultClass::NotJson,
        ("ONC04" | "ONC05" | "ONC11" | "ONC15", _) => FaultClass::Poison,
        ("25006", _) | (_, "08") => return None,
        ("57014", _) => FaultClass::Transient,
        (_, "57") => return None,
        (_, "42" | "3F") if planted("environment_is_poison") => FaultClass::Poison,
        (_, "53" | "58" | "42" | "3F" | "3D" | "28" | "XX" | "F0") => FaultClass::Environment,
        (_, "22" | "54") => FaultClass::Poison,
        _ => FaultClass::Transient,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_of_sqlstate_has_one_meaning() {
        let outage = ["08006", "08003", "57P01", "57P02", "57P03", "25006"];
        for code in outage {
            assert_eq!(class_of(code), None, "{code}");
        }
        for (code, class) in [
            ("40001", FaultClass::Transient),
            ("40P01", FaultClass::Transient),
            ("55P03", FaultClass::Transient),
            ("57014", FaultClass::Transient),
            ("23505", FaultClass::Transient),
            ("P0001", FaultClass::Transient),
            ("", FaultClass::Transient),
            ("53100", FaultClass::Environment),
            ("53300", FaultClass::Environment),
            ("42P01", FaultClass::Environment),
            ("42883", FaultClass::Environment),
            ("42501", FaultClass::Environment),
            ("3F000", FaultClass::Environment),
            ("22P02", FaultClass::Poison),
            ("22021", FaultClass::Poison),
            ("54001", FaultClass::Poison),
            ("ONC01", FaultClass::Rejected),
            ("ONC02", FaultClass::NotJson),
            ("ONC04", FaultClass::Poison),
            ("ONC05", FaultClass::Poison),
        ] {
            assert_eq!(class_of(code), Some(class), "{code}");
        }
    }
}
