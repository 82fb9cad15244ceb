//! Classifies errors of PostgreSQL: one table, by SQLSTATE and never by text.

use std::error::Error;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::condition::{describe_condition, is_application_code};
use oncely_core::fault::{Fault, FaultClass};

/// The connection or the server is unavailable; it is unknown whether a commit in flight happened. No message is to blame.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(.0))]
pub struct Outage(#[source] pub sqlx::Error);

impl Outage {
    /// Returns whether the wait timed out, as opposed to a connection reported as lost.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(&self.0, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut)
    }

    /// Returns whether the server has only ended this session, because it was idle (`idle_session_timeout`, 57P05): nothing had begun.
    #[must_use]
    pub fn is_idle_end(&self) -> bool {
        self.0.as_database_error().and_then(DatabaseError::code).as_deref() == Some("57P05")
    }
}

/// An error of PostgreSQL.
#[derive(Debug)]
pub enum PgFault {
    /// An outage: no message is to blame; the session is over.
    Outage(Outage),
    /// The statement failed; the session can continue.
    Fault(Fault),
}

/// Classifies an error of one of Oncely's own statements.
///
/// | SQLSTATE | class |
/// | --- | --- |
/// | none (I/O, TLS, protocol), 08 connection, 57 but 57014 (shutdown), 25006 read-only (a standby) | outage |
/// | 57014 cancelled (statement timeout) | transient |
/// | 40 rollback (deadlock, serialisation), 55P03 lock timeout | contention |
/// | 0A000 (a cached plan after a change of its table), 26000 (a lost prepared statement) | session |
/// | 53 resources, 58 system, 42, 3F and 3D (missing object, no grant), 28 login, F0 configuration, XX internal, HV (a foreign server), 55006 (an object is in use), 2200H (a sequence is used up), `ONC16` (no right to claim or emit), `ONC17` (reserved: not in this cell), `ONC22` (no room for a client's event) | environment |
/// | 22 data, 54 limits | poison |
/// | `ONC01` (`oncely.reject`) | rejected |
/// | `ONC07` (`oncely.refuse`) | refused |
/// | `ONC02` (body is not JSON) | not JSON |
/// | `ONC04`, `ONC05` (`oncely.emit`: an event that is too large, or can't be sent) | poison |
/// | `ONC11`, `ONC15` (`oncely.claim`, `oncely.complete`: arguments that can't be right) | poison |
/// | everything else, 23 (constraints) and P0001 (`raise`) with it | transient, so bounded by the attempts |
///
/// The class states whether a message *may* have caused the error (transient, poison), can't have caused it (environment, contention,
/// session), or its handler decided so. [`oncely_core::blame`] decides whether it did cause it.
///
/// Source: PostgreSQL's Appendix A, "PostgreSQL Error Codes".
#[must_use]
pub fn classify(error: sqlx::Error) -> PgFault {
    match classify_error(&error) {
        Some(fault) => PgFault::Fault(fault),
        None => PgFault::Outage(Outage(error)),
    }
}

/// Classifies an error of a statement that runs a handler. A service that the handler calls (such as a foreign server) may be unavailable
/// while the session is intact: only its end is an outage.
#[must_use]
pub fn classify_handler(error: sqlx::Error) -> PgFault {
    match classify_handler_error(&error) {
        Some(fault) => PgFault::Fault(fault),
        None => PgFault::Outage(Outage(error)),
    }
}

/// Classifies an error of a handler's statement; `None` for the end of the session.
fn classify_handler_error(error: &sqlx::Error) -> Option<Fault> {
    match error.as_database_error() {
        Some(database) => classify_handler_database_error(database),
        None => classify_error(error),
    }
}

/// Classifies an error that the server reported for a handler's statement; `None` for the end of the session.
fn classify_handler_database_error(database: &(dyn DatabaseError + 'static)) -> Option<Fault> {
    match database.try_downcast_ref::<PgDatabaseError>() {
        Some(error) if !matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic) => {
            let code = error.code().to_owned();
            let text = describe_database_error(database, &code);
            Some(Fault::new(classify_handler_sqlstate(&code), Some(code), text))
        }
        _ => classify_database_error(database),
    }
}

/// Returns whether an error is an outage, by the same table.
#[must_use]
pub fn is_outage(error: &sqlx::Error) -> bool {
    classify_error(error).is_none()
}

/// Returns whether the session is over, or may be: an outage, or an error with which the server has ended it, regardless of its code.
#[must_use]
pub fn ends_session(error: &sqlx::Error) -> bool {
    let database = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    is_outage(error)
        || database.is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

/// Returns whether every session may meet an error: an outage, or a state of the server (its resources, grants, configuration).
#[must_use]
pub fn affects_all_sessions(error: &sqlx::Error) -> bool {
    classify_error(error).is_none_or(|fault| {
        fault.class == FaultClass::Environment && !fault.code.as_deref().is_some_and(is_application_code)
    })
}

/// Returns whether one of Oncely's own statements that failed may succeed later: the server or another session caused the failure.
pub fn is_temporary(fault: &Fault) -> bool {
    match fault.class {
        FaultClass::Environment | FaultClass::Contention | FaultClass::Session => true,
        // Cancelled, or a key that changes too fast.
        FaultClass::Transient => matches!(fault.code.as_deref(), Some("57014" | "ONC14")),
        _ => false,
    }
}

/// Returns whether a statement exceeded its time or was cancelled (57014). The session can continue.
pub fn is_cancelled(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("57014")
}

/// Returns whether a statement exceeded its time (57014) or its wait for a lock (55P03). The session can continue.
pub fn is_slow(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(DatabaseError::code);
    matches!(code.as_deref(), Some("57014" | "55P03"))
}

/// Describes an error in one line for operators: its text as far as it may be shown, and its SQLSTATE, without the line of the server's
/// source code.
pub fn describe(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(database) => {
            let code = database.code().unwrap_or_default();
            format!("{} (SQLSTATE {code})", describe_database_error(database, &code))
        }
        None => error.to_string(),
    }
}

/// Describes an error that the server reported, as far as it may be shown to operators.
fn describe_database_error(database: &(dyn DatabaseError + 'static), code: &str) -> String {
    let object_names =
        database.try_downcast_ref::<PgDatabaseError>().map(format_object_names).unwrap_or_default();
    format_operator_text(code, &object_names, database.message())
}

/// Classifies a handler's error with PostgreSQL somewhere in its chain of causes: a fault, or an outage by its kind. `None` without
/// PostgreSQL.
pub fn classify_cause(error: &(dyn Error + 'static)) -> Option<Result<Fault, ErrorKind>> {
    if let Some(error) = error.downcast_ref::<sqlx::Error>() {
        let kind = match error {
            sqlx::Error::Io(error) => error.kind(),
            _ => ErrorKind::NotConnected,
        };
        return Some(classify_handler_error(error).ok_or(kind));
    }
    // A transparent wrapper exposes this error instead of the one above.
    let database = error.downcast_ref::<Box<dyn DatabaseError>>()?;
    Some(classify_handler_database_error(database.as_ref()).ok_or(ErrorKind::NotConnected))
}

/// Classifies an error that the server reported; `None` for an outage.
fn classify_database_error(database: &(dyn DatabaseError + 'static)) -> Option<Fault> {
    let code = database.code().map(|code| code.into_owned()).unwrap_or_default();
    let class = classify_sqlstate(&code)?;
    let text = describe_database_error(database, &code);
    Some(Fault::new(class, Some(code), text))
}

/// Classifies an error that the server reported or a value caused; `None` for an outage.
fn classify_error(error: &sqlx::Error) -> Option<Fault> {
    if let Some(database) = error.as_database_error() {
        return classify_database_error(database);
    }
    match error {
        // The text may contain the value that could not be decoded.
        sqlx::Error::ColumnDecode { index, .. } if !SERVER_TEXTS.load(Ordering::Relaxed) => {
            Some(Fault::new(FaultClass::Transient, None, format!("column {index} could not be decoded")))
        }
        // Decoding by Oncely or by a handler, not a problem of the connection.
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

/// Whether PostgreSQL's own error texts are shown, for the whole process.
static SERVER_TEXTS: AtomicBool = AtomicBool::new(false);

/// Sets whether PostgreSQL's own error texts go to log, trail and dead letters. They may contain data of the message (a failed cast quotes
/// its input), so by default only the condition is shown, with the names that the server reports separately.
pub fn set_server_texts_shown(is_shown: bool) {
    SERVER_TEXTS.store(is_shown, Ordering::Relaxed);
}

/// Formats the text of an error for operators: PostgreSQL's text only if a person wrote it on purpose (`raise exception`, `oncely.reject`),
/// or if the configuration allows it.
pub fn format_operator_text(code: &str, object_names: &str, text: &str) -> String {
    match is_application_code(code) || SERVER_TEXTS.load(Ordering::Relaxed) {
        true => text.to_owned(),
        false if object_names.is_empty() => describe_condition(code).to_owned(),
        false => format!("{}: {object_names}", describe_condition(code)),
    }
}

/// Formats the names of the constraint, table and column that the server reports apart from its message.
fn format_object_names(error: &PgDatabaseError) -> String {
    let names = [("constraint", error.constraint()), ("table", error.table()), ("column", error.column())];
    let descriptions = names.into_iter().filter_map(|(what, name)| Some(format!("{what} {}", name?)));
    descriptions.collect::<Vec<_>>().join(", ")
}

/// Classifies a SQLSTATE; `None` for an outage.
#[must_use]
pub fn classify_sqlstate(code: &str) -> Option<FaultClass> {
    Some(match (code, code.get(..2).unwrap_or_default()) {
        ("ONC01" | "ONC06", _) => FaultClass::Rejected,
        ("ONC07", _) => FaultClass::Refused,
        ("ONC02", _) => FaultClass::NotJson,
        ("ONC04" | "ONC05" | "ONC11" | "ONC15", _) => FaultClass::Poison,
        ("25006", _) | (_, "08") => return None,
        ("57014", _) => FaultClass::Transient,
        (_, "57") => return None,
        ("2200H" | "55006" | "ONC16" | "ONC17" | "ONC22", _)
        | (_, "53" | "58" | "42" | "3F" | "3D" | "28" | "XX" | "F0" | "HV") => FaultClass::Environment,
        (_, "22" | "54") => FaultClass::Poison,
        ("55P03", _) | (_, "40") => FaultClass::Contention,
        ("0A000" | "26000", _) => FaultClass::Session,
        _ => FaultClass::Transient,
    })
}

/// Classifies a SQLSTATE of a handler's statement after which its session can continue.
#[must_use]
pub fn classify_handler_sqlstate(code: &str) -> FaultClass {
    classify_sqlstate(code).unwrap_or(FaultClass::Environment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncely_core::blame::{Blame, Circumstances, blame};

    proptest::proptest! {
        #[test]
        fn no_sqlstate_is_charged_while_all_messages_fail(code in "[0-9A-Z]{5}", by_itself: bool) {
            let class = classify_handler_sqlstate(&code);
            let circumstances = Circumstances { is_by_itself: by_itself, has_witness: false, is_alone: false, is_persistent: false };
            let spoken = [FaultClass::Rejected, FaultClass::Refused, FaultClass::NotJson];
            let is_charged = matches!(blame(class, circumstances), Blame::Message(_));
            proptest::prop_assert_eq!(is_charged, spoken.contains(&class), "{}", code);
        }
    }

    #[test]
    fn each_class_of_sqlstate_has_one_meaning() {
        let outage = ["08006", "08003", "57P01", "57P02", "57P03", "25006"];
        for code in outage {
            assert_eq!(classify_sqlstate(code), None, "{code}");
        }
        for (code, class) in [
            ("40001", FaultClass::Contention),
            ("40P01", FaultClass::Contention),
            ("55P03", FaultClass::Contention),
            ("0A000", FaultClass::Session),
            ("26000", FaultClass::Session),
            ("2200H", FaultClass::Environment),
            ("55006", FaultClass::Environment),
            ("HV00N", FaultClass::Environment),
            ("ONC16", FaultClass::Environment),
            ("ONC17", FaultClass::Environment),
            ("ONC22", FaultClass::Environment),
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
            ("ONC06", FaultClass::Rejected),
            ("ONC02", FaultClass::NotJson),
            ("ONC07", FaultClass::Refused),
            ("ONC04", FaultClass::Poison),
            ("ONC05", FaultClass::Poison),
        ] {
            assert_eq!(classify_sqlstate(code), Some(class), "{code}");
        }
    }
}
