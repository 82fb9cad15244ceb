//! Why a page can't be shown, in words.

use axum::http::StatusCode;
use maud::html;

use super::page::Page;
use crate::pg;
use crate::pg::PgSettings;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageError {
    /// The question takes longer than a page waits.
    TooWide,
    /// Another session holds what is asked for.
    Busy,
    /// PostgreSQL does not answer: what the driver says.
    Away(String),
    NotFound(String),
    /// Somebody may not do it.
    Refused(String),
    /// What was asked makes no sense.
    Wrong(String),
    /// Something that should not be.
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
            // Arguments that can't be right: our own functions say what.
            Some("ONC11") => Self::Wrong(pg::describe(&error)),
            _ if pg::is_outage(&error) || matches!(error, sqlx::Error::Configuration(_)) => {
                Self::Away(pg::describe(&error))
            }
            _ => Self::Failed(pg::describe(&error)),
        }
    }
}

impl PageError {
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

    /// The page in place of the one that was asked for.
    pub(crate) fn page(&self, postgres: &PgSettings) -> Page {
        let (title, said) = match self {
            Self::TooWide => (
                "Too wide: narrow the time",
                html! {
                    p { "PostgreSQL needed longer for this page than a page may take. Ask for a shorter time, for one consumer, or for one key. The other pages are not concerned." }
                },
            ),
            Self::Busy => (
                "Somebody else is changing this",
                html! {
                    p { "Another session holds it in a transaction that is not finished, so nothing was done here. Try again in a moment; where that does not help, " code { "pg_locks" } " names the session." }
                },
            ),
            Self::Away(why) => (
                "PostgreSQL does not answer",
                html! {
                    p { "Asked: " code { (postgres.shown()) } ". It said: " (why) "." }
                    p { "Workers wait for it: no message is lost, and no attempt is spent. Do not purge queues. This page comes back by itself when it is loaded again." }
                },
            ),
            Self::NotFound(what) => ("Nothing here", html! { p { (what) } }),
            Self::Refused(why) => ("Not allowed", html! { p { (why) } }),
            Self::Wrong(what) => ("That can't be asked", html! { p { (what) } }),
            Self::Failed(why) => {
                ("This page failed", html! { p { (why) } p { "The console's log has the same line." } })
            }
        };
        Page::notice(self.status(), title, said)
    }
}
