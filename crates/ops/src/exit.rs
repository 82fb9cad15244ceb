//! Exit codes: the same for all three programs.

use std::process::ExitCode;

use oncely_process::preflight::PostgresUnreachable;

/// Not found, findings, some failed.
pub const NO: u8 = 1;
/// Wrong usage, including clap's errors of a command line.
pub const USAGE: u8 = 2;
/// A server does not answer.
pub const UNREACHABLE: u8 = 3;
/// Refused: a change that was not confirmed, exceeds a limit, or needs a right that the login lacks.
pub const REFUSED: u8 = 4;
/// `oncely status`: messages are stuck, or many are given up. `oncely doctor`: errors. `oncely migrate plan`: other sessions wait for
/// longer than a second.
pub const DANGER: u8 = 5;
/// `EX_CONFIG` of sysexits.h: the configuration is refused. A supervisor should not restart (RestartPreventExitStatus=78).
pub const CONFIG: u8 = 78;

/// Prints an error and its causes on one line of stderr, and returns its exit code.
pub fn report_error(error: &anyhow::Error) -> ExitCode {
    use std::io::Write as _;
    // A closed stderr does not change the exit code.
    let _ = writeln!(
        std::io::stderr(),
        "error: {}",
        oncely_core::shown::escape_lines(&format_error_chain(error))
    );
    ExitCode::from(code(error))
}

/// Returns the exit code of an error.
#[must_use]
pub fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| {
        cause.is::<oncely_config::Problems>() || cause.is::<oncely_worker::worker::WorkerError>()
    }) {
        return CONFIG;
    }
    let is_unreachable = error.chain().any(|cause| {
        cause.is::<oncely_amqp::AmqpError>()
            || cause.is::<PostgresUnreachable>()
            || cause.downcast_ref::<sqlx::Error>().is_some_and(oncely_postgres::is_outage)
    });
    match () {
        () if is_unreachable => UNREACHABLE,
        () if error.chain().any(is_forbidden) => REFUSED,
        () => NO,
    }
}

/// Returns whether PostgreSQL reports a missing right.
fn is_forbidden(cause: &(dyn std::error::Error + 'static)) -> bool {
    let code =
        cause.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error).and_then(|e| e.code());
    code.as_deref() == Some("42501")
}

/// Formats an error with its causes, without repetition: some libraries include their cause in their own text.
pub fn format_error_chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // The description includes the error's own causes.
        let database = cause.downcast_ref::<sqlx::Error>().map(oncely_postgres::describe);
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
