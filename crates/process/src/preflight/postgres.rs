//! Checks that the database is fit.

use std::borrow::Cow;

use sqlx::Connection as _;

use super::CheckFindings;
use super::trust::POSTGRES;
use oncely_config::Config;
use oncely_postgres::{self as pg, PgSettings, Secrets, Session};

/// Oldest version with all required features.
const OLDEST: i32 = 150_000;

/// Connects, and checks that this is the right database. Stops at the first error.
pub async fn postgres(config: &Config, found: &mut CheckFindings) -> Option<Session> {
    database(&config.postgres, &config.cell, found).await
}

/// Connects with the given settings, and checks the database. `cell`: its required name.
pub(super) async fn database(
    settings: &PgSettings,
    cell: &str,
    found: &mut CheckFindings,
) -> Option<Session> {
    let server = settings.shown();
    let mut connection = match settings.connect("oncely preflight").await {
        Ok(connection) => connection,
        Err(error) if drops_options(&error) || refuses_options(settings, &error).await => {
            found.error("pg.pooler", "postgres.url", format!("{server}: {error}; {POOLER}"));
            return None;
        }
        Err(error) => {
            let text = pg::describe(&error);
            if let Some(fault) = pg::tls_fault(&error, settings) {
                POSTGRES.report_fault(fault, &server, &text, found);
                return None;
            }
            match is_refusal(&error) {
                true => found.error("pg.reach", "postgres.url", format!("{server}: {text}")),
                false => found.add_unreachable("pg.reach", format!("PostgreSQL at {server}: {text}")),
            }
            return None;
        }
    };
    if let Ok(address) = pg::Address::from_settings(settings) {
        POSTGRES.report_protection(address.tls.as_ref(), settings.allow_plaintext, found);
    }
    match fitting(settings, &server, &mut connection, found).await {
        Ok(true) => {}
        Ok(false) => return None,
        Err((check, error)) => {
            unexpected(found, check, &server, error);
            return None;
        }
    }
    let session = match Session::open(settings, "oncely preflight").await {
        Ok(session) => session,
        Err(error) => {
            unexpected(found, "pg.cell", &server, error);
            return None;
        }
    };
    found.add_read("pg.cell", format!("the database is the cell {:?}", session.cell.name));
    if session.cell.name != cell {
        let what = format!(
            "the database at {server} is the cell {:?}, not {:?}: a wrong URL would deduplicate in the wrong place",
            session.cell.name, cell
        );
        found.error("pg.cell", "cell.name", what);
    }
    found.add_read("pg.reach", format!("{server}, epoch {}", session.cell.epoch));
    Some(session)
}

/// Checks the requirements of a session. An error is returned with the check that failed to query.
async fn fitting(
    settings: &PgSettings,
    server: &str,
    connection: &mut sqlx::PgConnection,
    found: &mut CheckFindings,
) -> Result<bool, (&'static str, sqlx::Error)> {
    let of = |check: &'static str| move |error| (check, error);
    let pids = processes(settings, connection).await.map_err(of("pg.pooler"))?;
    found.add_read("pg.pooler", format!("the server's processes of two connections: {pids:?}"));
    let [before, others, after] = pids;
    if before != after || before == others {
        found.error("pg.pooler", "postgres.url", format!("{server}: {POOLER}"));
        return Ok(false);
    }
    let (number, version) = pg::server_version(connection).await.map_err(of("pg.version"))?;
    found.add_read("pg.version", format!("PostgreSQL {version}"));
    if number < OLDEST {
        let what = format!("{server} is PostgreSQL {version}: Oncely needs 15 or later");
        found.error("pg.version", "postgres.url", what);
        return Ok(false);
    }
    let encoding = pg::server_encoding(connection).await.map_err(of("pg.encoding"))?;
    found.add_read("pg.encoding", encoding.as_str());
    if let Some(what) = pg::unfit_encoding(&encoding) {
        found.error("pg.encoding", "postgres.url", format!("{server}: {what}"));
        return Ok(false);
    }
    if let Some(login) = pg::login_without_schema_usage(connection).await.map_err(of("pg.grants"))? {
        let what = format!(
            "the login {login} may not enter the schema oncely at {server}: grant it the role of its work, as in \"grant \
             oncely_worker to {login}\""
        );
        found.error("pg.grants", "postgres.url", what);
        return Ok(false);
    }
    let state = pg::migration_state(connection).await.map_err(of("pg.schema"))?;
    found.add_read("pg.schema", format!("{} migrations are not applied", state.pending.len()));
    if !state.pending.is_empty() {
        let what =
            format!("{} migrations are not applied at {server}; run `oncely migrate`", state.pending.len());
        found.error("pg.schema", "postgres", what);
        return Ok(false);
    }
    if !state.changed.is_empty() {
        let what =
            format!("migrations {:?} were applied from other files than this program's", state.changed);
        found.error("pg.schema", super::PROGRAM, what);
        return Ok(false);
    }
    if let Some(version) = state.contracted {
        let what = format!(
            "a newer Oncely has migrated this database, and its migration {version} took away what this program still uses: update \
             this program"
        );
        found.error("pg.schema", super::PROGRAM, what);
        return Ok(false);
    }
    if !state.unknown.is_empty() {
        let what = format!(
            "a newer Oncely has migrated this database ({:?} are unknown here): update this program",
            state.unknown
        );
        found.info("pg.schema", "", what);
    }
    Ok(true)
}

/// Number of attempts with and without start-up options, if a pooler refuses them.
const ROUNDS: u32 = 3;

/// A pooler in transaction mode gives each transaction another backend: a session's settings don't persist.
const POOLER: &str = "there is a pooler in between that shares a server's process among connections or drops start-up options: Oncely's sessions have settings, prepared statements and cancellations of their own; \
     connect to PostgreSQL directly, or in session mode with a login that has the settings of the options";

/// Returns the backends of a connection, of a second open connection, and of the first again. A pooler gives the backend that was last free
/// to the next request.
async fn processes(settings: &PgSettings, first: &mut sqlx::PgConnection) -> sqlx::Result<[i32; 3]> {
    let client_timeout = settings.client_timeout();
    let mut second = settings.connect("oncely preflight").await?;
    let before = pg::within(client_timeout, pg::process(first)).await?;
    let others = pg::within(client_timeout, pg::process(&mut second)).await?;
    let after = pg::within(client_timeout, pg::process(first)).await?;
    second.close().await?;
    Ok([before, others, after])
}

/// Reads a worker's keys. Without them `found` has the reason.
pub async fn read_secrets(
    config: &Config,
    session: &mut Session,
    found: &mut CheckFindings,
) -> Option<Secrets> {
    let asked = pg::within(config.postgres.client_timeout(), pg::secrets(&mut session.connection)).await;
    let of = "oncely.mirror_keys and oncely.signing_keys (role oncely_worker)";
    keys_or_finding(config, found, of, asked)
}

/// Checks that the keys of tags can be read.
pub async fn read_tag_keys(config: &Config, session: &mut Session, found: &mut CheckFindings) {
    let asked = pg::within(config.postgres.client_timeout(), pg::mirror_keys(&mut session.connection)).await;
    keys_or_finding(
        config,
        found,
        "oncely.mirror_keys (roles oncely_worker, oncely_relay, oncely_operator)",
        asked,
    );
}

/// Returns the keys; reports it if they can't be read.
fn keys_or_finding<T>(
    config: &Config,
    found: &mut CheckFindings,
    of: &str,
    asked: sqlx::Result<T>,
) -> Option<T> {
    match asked {
        Ok(keys) => Some(keys),
        Err(error) => {
            let what = format!("{}: keys can't be read by {of}", config.postgres.shown());
            unexpected(found, "pg.grants", &what, error);
            None
        }
    }
}

/// Checks that the worker may read pauses. Without that right it would never begin.
pub async fn pauses(config: &Config, session: &mut Session, found: &mut CheckFindings) {
    let server = config.postgres.shown();
    let asked = pg::missing_privileges(&mut session.connection, &[("select", "oncely.controls")]);
    match pg::within(config.postgres.client_timeout(), asked).await {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            let what = format!(
                "{server}: the login may not {}, so it can't be told which consumers are paused: grant it the role oncely_worker, or \
                 \"grant {}\" to the role",
                missing.join(", "),
                missing.join(", ")
            );
            found.error("pg.grants", "postgres.url", what);
        }
        Err(error) => unexpected(found, "pg.grants", &server, error),
    }
}

/// Returns whether start-up options were ignored.
fn drops_options(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(_))
}

/// Returns whether the error is PROTOCOL VIOLATION, PgBouncer's answer to everything that it refuses: unknown start-up options, but also
/// temporary conditions (no connection is free, its server does not answer).
fn is_refused_by_pooler(error: &sqlx::Error) -> bool {
    code_of(error).as_deref() == Some("08P01")
}

/// Returns whether a pooler refuses only connections with start-up options. Tries both in turn, as a temporary condition may end in between.
async fn refuses_options(settings: &PgSettings, error: &sqlx::Error) -> bool {
    let mut is_refused = is_refused_by_pooler(error);
    for _ in 0..ROUNDS {
        if !is_refused || !settings.answers_without_options().await {
            return false;
        }
        let again = settings.connect("oncely preflight").await;
        is_refused = again.is_err_and(|error| is_refused_by_pooler(&error));
    }
    is_refused
}

/// Reports an unexpected error of a query.
pub fn unexpected(found: &mut CheckFindings, check: &'static str, server: &str, error: sqlx::Error) {
    if drops_options(&error) {
        found.error("pg.pooler", "postgres.url", format!("{server}: {error}; {POOLER}"));
        return;
    }
    let text = pg::describe(&error);
    match is_refusal(&error) {
        true => found.error(check, "postgres", format!("{server}: {text}")),
        // All other errors may be temporary: no connection is free, the server starts, a disk is full.
        false => found.add_unreachable("pg.reach", format!("PostgreSQL at {server}: {text}")),
    }
}

/// Returns the SQLSTATE, if the server sent one.
pub(super) fn code_of(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(|error| error.code())
}

/// Returns whether PostgreSQL refuses the request: the login, the database, a name, a right, a start-up option.
fn is_refusal(error: &sqlx::Error) -> bool {
    code_of(error).is_some_and(|code| {
        code == "22023" || ["28", "3D", "3F", "42"].iter().any(|class| code.starts_with(class))
    })
}
