//! Checks that the database is fit.

use std::borrow::Cow;

use sqlx::Connection as _;

use super::CheckFindings;
use super::trust::POSTGRES;
use oncely_config::Config;
use oncely_postgres::{self as pg, PgSettings, Secrets, Session};

/// The minimum version of PostgreSQL, as a number: the oldest with all required features.
const MIN_VERSION: i32 = 150_000;

/// Connects to PostgreSQL, and checks that the database is fit and the configured one. Returns the session; `None` after an error, which is
/// a finding and ends the checks.
pub async fn check_postgres(config: &Config, findings: &mut CheckFindings) -> Option<Session> {
    connect_and_check(&config.postgres, &config.cell, findings).await
}

/// Connects with the given settings, and checks the database; `None` after an error, which is a finding. `cell`: the cell's required name.
pub(super) async fn connect_and_check(
    settings: &PgSettings,
    cell: &str,
    findings: &mut CheckFindings,
) -> Option<Session> {
    let server = settings.redacted();
    let mut connection = match settings.connect("oncely preflight").await {
        Ok(connection) => connection,
        Err(error) if is_dropped_options(&error) || probe_refused_options(settings, &error).await => {
            findings.add_error("pg.pooler", "postgres.url", format!("{server}: {error}; {POOLER_TEXT}"));
            return None;
        }
        Err(error) => {
            let text = pg::describe(&error);
            if let Some(fault) = pg::classify_tls_fault(&error, settings) {
                POSTGRES.report_fault(fault, &server, &text, findings);
                return None;
            }
            match is_refusal(&error) {
                true => findings.add_error("pg.reach", "postgres.url", format!("{server}: {text}")),
                false => findings.add_unreachable("pg.reach", format!("PostgreSQL at {server}: {text}")),
            }
            return None;
        }
    };
    if let Ok(address) = pg::Address::from_settings(settings) {
        POSTGRES.report_protection(address.tls.as_ref(), settings.allow_plaintext, findings);
    }
    match check_requirements(settings, &server, &mut connection, findings).await {
        Ok(true) => {}
        Ok(false) => return None,
        Err((check, error)) => {
            report_query_error(findings, check, &server, error);
            return None;
        }
    }
    let session = match Session::open(settings, "oncely preflight").await {
        Ok(session) => session,
        Err(error) => {
            report_query_error(findings, "pg.cell", &server, error);
            return None;
        }
    };
    findings.add_read("pg.cell", format!("the database is the cell {:?}", session.cell.name));
    if session.cell.name != cell {
        let text = format!(
            "the database at {server} is the cell {:?}, not {:?}: a wrong URL would deduplicate in the wrong place",
            session.cell.name, cell
        );
        findings.add_error("pg.cell", "cell.name", text);
    }
    findings.add_read("pg.reach", format!("{server}, epoch {}", session.cell.epoch));
    Some(session)
}

/// Checks the requirements of a session; returns false if one is not met. An error of a query is returned with the check that it ended.
async fn check_requirements(
    settings: &PgSettings,
    server: &str,
    connection: &mut sqlx::PgConnection,
    findings: &mut CheckFindings,
) -> Result<bool, (&'static str, sqlx::Error)> {
    let of = |check: &'static str| move |error| (check, error);
    let pids = read_backend_pids(settings, connection).await.map_err(of("pg.pooler"))?;
    findings.add_read("pg.pooler", format!("the server's processes of two connections: {pids:?}"));
    let [before, others, after] = pids;
    if before != after || before == others {
        findings.add_error("pg.pooler", "postgres.url", format!("{server}: {POOLER_TEXT}"));
        return Ok(false);
    }
    let (number, version) = pg::read_server_version(connection).await.map_err(of("pg.version"))?;
    findings.add_read("pg.version", format!("PostgreSQL {version}"));
    if number < MIN_VERSION {
        let text = format!("{server} is PostgreSQL {version}: Oncely needs 15 or later");
        findings.add_error("pg.version", "postgres.url", text);
        return Ok(false);
    }
    let encoding = pg::read_server_encoding(connection).await.map_err(of("pg.encoding"))?;
    findings.add_read("pg.encoding", encoding.as_str());
    if let Some(text) = pg::describe_unfit_encoding(&encoding) {
        findings.add_error("pg.encoding", "postgres.url", format!("{server}: {text}"));
        return Ok(false);
    }
    if let Some(login) = pg::read_login_without_schema_usage(connection).await.map_err(of("pg.grants"))? {
        let text = format!(
            "the login {login} may not enter the schema oncely at {server}: grant it the role of its work, as in \"grant \
             oncely_worker to {login}\""
        );
        findings.add_error("pg.grants", "postgres.url", text);
        return Ok(false);
    }
    let state = pg::read_migration_state(connection).await.map_err(of("pg.schema"))?;
    findings.add_read("pg.schema", format!("{} migrations are not applied", state.pending.len()));
    if !state.pending.is_empty() {
        let text =
            format!("{} migrations are not applied at {server}; run `oncely migrate`", state.pending.len());
        findings.add_error("pg.schema", "postgres", text);
        return Ok(false);
    }
    if !state.changed.is_empty() {
        let text =
            format!("migrations {:?} were applied from other files than this program's", state.changed);
        findings.add_error("pg.schema", super::PROGRAM_SUBJECT, text);
        return Ok(false);
    }
    if let Some(version) = state.contracted {
        let text = format!(
            "a newer Oncely has migrated this database, and its migration {version} took away what this program still uses: update \
             this program"
        );
        findings.add_error("pg.schema", super::PROGRAM_SUBJECT, text);
        return Ok(false);
    }
    if !state.unknown.is_empty() {
        let text = format!(
            "a newer Oncely has migrated this database ({:?} are unknown here): update this program",
            state.unknown
        );
        findings.add_info("pg.schema", "", text);
    }
    Ok(true)
}

/// Number of attempts with and without start-up options, if a pooler refuses them.
const POOLER_TRIES: u32 = 3;

/// The text of an error about a pooler. One in transaction mode gives each transaction another backend: a session's settings don't persist.
const POOLER_TEXT: &str = "there is a pooler in between that shares a server's process among connections or drops start-up options: Oncely's sessions have settings, prepared statements and cancellations of their own; \
     connect to PostgreSQL directly, or in session mode with a login that has the settings of the options";

/// Reads the backend pids of a connection, of a second one that is opened beside it, and of the first again. A pooler gives the backend
/// that was last free to the next request.
async fn read_backend_pids(settings: &PgSettings, first: &mut sqlx::PgConnection) -> sqlx::Result<[i32; 3]> {
    let client_timeout = settings.client_timeout();
    let mut second = settings.connect("oncely preflight").await?;
    let before = pg::wait_for_answer(client_timeout, pg::read_backend_pid(first)).await?;
    let others = pg::wait_for_answer(client_timeout, pg::read_backend_pid(&mut second)).await?;
    let after = pg::wait_for_answer(client_timeout, pg::read_backend_pid(first)).await?;
    second.close().await?;
    Ok([before, others, after])
}

/// Reads a worker's keys; `None` after an error of the query, which is a finding.
pub async fn read_secrets(
    config: &Config,
    session: &mut Session,
    findings: &mut CheckFindings,
) -> Option<Secrets> {
    let result =
        pg::wait_for_answer(config.postgres.client_timeout(), pg::read_secrets(&mut session.connection))
            .await;
    let functions = "oncely.mirror_keys and oncely.signing_keys (role oncely_worker)";
    unwrap_keys_or_report(config, findings, functions, result)
}

/// Checks that the keys of tags can be read by the login.
pub async fn check_tag_keys(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    let result =
        pg::wait_for_answer(config.postgres.client_timeout(), pg::read_mirror_keys(&mut session.connection))
            .await;
    unwrap_keys_or_report(
        config,
        findings,
        "oncely.mirror_keys (roles oncely_worker, oncely_relay, oncely_operator)",
        result,
    );
}

/// Returns the keys of a query's result; after an error adds a finding, and returns `None`. `functions`: those that return the keys.
fn unwrap_keys_or_report<T>(
    config: &Config,
    findings: &mut CheckFindings,
    functions: &str,
    result: sqlx::Result<T>,
) -> Option<T> {
    match result {
        Ok(keys) => Some(keys),
        Err(error) => {
            let text = format!("{}: keys can't be read by {functions}", config.postgres.redacted());
            report_query_error(findings, "pg.grants", &text, error);
            None
        }
    }
}

/// Checks that the worker may read pauses. Without that right it would never take a message.
pub async fn check_pauses(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    let server = config.postgres.redacted();
    let query = pg::list_missing_privileges(&mut session.connection, &[("select", "oncely.controls")]);
    match pg::wait_for_answer(config.postgres.client_timeout(), query).await {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            let text = format!(
                "{server}: the login may not {}, so it can't be told which consumers are paused: grant it the role oncely_worker, or \
                 \"grant {}\" to the role",
                missing.join(", "),
                missing.join(", ")
            );
            findings.add_error("pg.grants", "postgres.url", text);
        }
        Err(error) => report_query_error(findings, "pg.grants", &server, error),
    }
}

/// Returns whether the error shows that start-up options were ignored.
fn is_dropped_options(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(_))
}

/// Returns whether the error is PROTOCOL VIOLATION, PgBouncer's answer to everything that it refuses: unknown start-up options, but also
/// temporary conditions (no connection is free, its server does not answer).
fn is_refused_by_pooler(error: &sqlx::Error) -> bool {
    sqlstate(error).as_deref() == Some("08P01")
}

/// Connects with and without start-up options in turn, up to [`POOLER_TRIES`] times, as a temporary condition may end in between. Returns
/// whether a pooler refuses only connections with them. `error`: the first refusal.
async fn probe_refused_options(settings: &PgSettings, error: &sqlx::Error) -> bool {
    let mut is_refused = is_refused_by_pooler(error);
    for _ in 0..POOLER_TRIES {
        if !is_refused || !settings.can_connect_without_options().await {
            return false;
        }
        let result = settings.connect("oncely preflight").await;
        is_refused = result.is_err_and(|error| is_refused_by_pooler(&error));
    }
    is_refused
}

/// Adds a finding about an error of a query: an error of `check` if PostgreSQL refuses it, otherwise a server that does not answer.
pub fn report_query_error(
    findings: &mut CheckFindings,
    check: &'static str,
    server: &str,
    error: sqlx::Error,
) {
    if is_dropped_options(&error) {
        findings.add_error("pg.pooler", "postgres.url", format!("{server}: {error}; {POOLER_TEXT}"));
        return;
    }
    let text = pg::describe(&error);
    match is_refusal(&error) {
        true => findings.add_error(check, "postgres", format!("{server}: {text}")),
        // All other errors may be temporary: no connection is free, the server starts, a disk is full.
        false => findings.add_unreachable("pg.reach", format!("PostgreSQL at {server}: {text}")),
    }
}

/// Returns the SQLSTATE of an error; `None` if the server sent none.
pub(super) fn sqlstate(error: &sqlx::Error) -> Option<Cow<'_, str>> {
    error.as_database_error().and_then(|error| error.code())
}

/// Returns whether PostgreSQL refuses the request: the login, the database, a name, a right, a start-up option.
fn is_refusal(error: &sqlx::Error) -> bool {
    sqlstate(error).is_some_and(|code| {
        code == "22023" || ["28", "3D", "3F", "42"].iter().any(|class| code.starts_with(class))
    })
}
