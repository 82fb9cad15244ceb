//! Exit codes: the same for all three programs.

use std::process::ExitCode;

use crate::preflight::Unreachable;

/// Not found, findings, some failed.
pub const NO: u8 = 1;
/// Wrong usage: what clap says of a command line, too.
pub const USAGE: u8 = 2;
/// A server does not answer.
pub const UNREACHABLE: u8 = 3;
/// Refused: a change that nobody has agreed to, that is larger than allowed, or that the login may not make.
pub const REFUSED: u8 = 4;
/// `oncely status`: messages stand still, or are given up in numbers. `oncely doctor`: errors. `oncely migrate plan`: somebody waits for
/// longer than a second.
pub const DANGER: u8 = 5;
/// `EX_CONFIG` of sysexits.h: the configuration is refused. A supervisor should not restart (RestartPreventExitStatus=78).
pub const CONFIG: u8 = 78;

/// Prints an error and its causes on one line of stderr and turns it into an exit code.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    use std::io::Write as _;
    // A closed stderr is no reason to fail differently.
    let _ = writeln!(std::io::stderr(), "error: {}", crate::shown::lines(&told(error)));
    ExitCode::from(code(error))
}

/// The exit code of an error.
#[must_use]
pub fn code(error: &anyhow::Error) -> u8 {
    if error
        .chain()
        .any(|cause| cause.is::<crate::config::Problems>() || cause.is::<crate::worker::WorkerError>())
    {
        return CONFIG;
    }
    let away = error.chain().any(|cause| {
        cause.is::<crate::amqp::AmqpError>()
            || cause.is::<Unreachable>()
            || cause.downcast_ref::<sqlx::Error>().is_some_and(crate::pg::is_outage)
    });
    match () {
        () if away => UNREACHABLE,
        () if error.chain().any(is_forbidden) => REFUSED,
        () => NO,
    }
}

/// PostgreSQL says that the login lacks a right.
fn is_forbidden(cause: &(dyn std::error::Error + 'static)) -> bool {
    let code =
        cause.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error).and_then(|e| e.code());
    code.as_deref() == Some("42501")
}

/// An error with its causes, each said once: some libraries repeat their cause in their own text.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // Its own causes say no more than it does.
        let database = cause.downcast_ref::<sqlx::Error>().map(crate::pg::describe);
        let is_last = database.is_some();
        let cause = database.unwrap_or_else(|| cause.to_string());
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        if is_last {
            break;
        }
    }
    text
}
