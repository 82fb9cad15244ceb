//! Errors of pages.

use axum::http::StatusCode;
use maud::html;

use super::page::Page;
use oncely_postgres as pg;
use oncely_postgres::PgSettings;

/// The reason why a page can't be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageError {
    /// The query takes longer than the page's time limit.
    TooWide,
    /// Another session holds a lock.
    Busy,
    /// PostgreSQL does not answer; with the driver's error.
    Away(String),
    NotFound(String),
    /// The user may not do it.
    Refused(String),
    /// The request is invalid.
    Wrong(String),
    /// An internal error.
    Failed(String),
}

impl From<sqlx::Error> for PageError {
    fn from(error: sqlx::Error) -> Self {
        let code = error.as_database_error().and_then(|error| error.code()).map(|code| code.into_owned());
        match code.as_deref() {
            // query_canceled, by statement_timeout.
            Some("57014") => Self::TooWide,
            // lock_not_available, by lock_timeout.
            Some("55P03") => Self::Busy,
            // insufficient_privilege
            Some("42501") => Self::Refused(format!(
                "PostgreSQL does not allow it to the console's login: {}",
                pg::describe(&error)
            )),
            // Invalid arguments: the functions of the schema `oncely` explain them.
            Some("ONC11") => Self::Wrong(pg::describe(&error)),
            _ if pg::is_outage(&error) || matches!(error, sqlx::Error::Configuration(_)) => {
                Self::Away(pg::describe(&error))
            }
            _ => Self::Failed(pg::describe(&error)),
        }
    }
}

impl PageError {
    /// Returns the HTTP status of the page.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::TooWide | Self::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Busy => StatusCode::CONFLICT,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Refused(_) => StatusCode::FORBIDDEN,
            Self::Wrong(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Builds the page that replaces the requested one.
    pub(crate) fn to_page(&self, postgres: &PgSettings) -> Page {
        let (title, message) = match self {
            Self::TooWide => (
                "Too wide: narrow the time",
                html! {
                    p {
                        "The query of this page took too long. Select a shorter time, one consumer or one key. \
                         The other pages are not affected."
                    }
                },
            ),
            Self::Busy => (
                "Locked by another session",
                html! {
                    p {
                        "Another session has locked it in an open transaction, so nothing was changed. Try again \
                         in a moment; if that does not help, "
                        code { "pg_locks" }
                        " names the session."
                    }
                },
            ),
            Self::Away(why) => (
                "PostgreSQL does not answer",
                html! {
                    p { "Asked: " code { (postgres.redacted()) } ". It said: " (why) "." }
                    p {
                        "Workers wait for it: no message is lost, and no attempt is spent. Do not purge queues. \
                         Reload this page later."
                    }
                },
            ),
            Self::NotFound(what) => ("Nothing here", html! { p { (what) } }),
            Self::Refused(why) => ("Not allowed", html! { p { (why) } }),
            Self::Wrong(what) => ("Invalid request", html! { p { (what) } }),
            Self::Failed(why) => {
                ("This page failed", html! { p { (why) } p { "The console's log has the same line." } })
            }
        };
        Page::notice(self.status(), title, message)
    }
}
