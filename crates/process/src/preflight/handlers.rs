//! Checks that the consumers' functions exist, and that the database's settings of consumers equal the configuration.

use super::{CheckFindings, code_of, unexpected};
use oncely_config::Config;
use oncely_handler::SqlFunction;
use oncely_postgres::{self as pg, HandlerFunction, Session};

/// Checks every consumer's function.
pub async fn handlers(config: &Config, session: &mut Session, found: &mut CheckFindings) {
    let server = config.postgres.shown();
    for consumer in &config.consumers {
        if consumer.observes() {
            found.add_read("pg.handler", format!("{}: it only observes, and calls none", consumer.name));
            continue;
        }
        let Some(function) = &consumer.handler else {
            let whose = match &consumer.http {
                Some(endpoint) => format!("{} does the work", endpoint.shown()),
                None => "the program brings the handler".to_owned(),
            };
            found.add_read("pg.handler", format!("{}: {whose}", consumer.name));
            continue;
        };
        let place = format!("consumers.{}.handler.function", consumer.name);
        match pg::handler_functions(&mut session.connection, &function.name).await {
            Ok(functions) => {
                found.add_read("pg.handler", format!("{}: {}", consumer.name, listed(function, &functions)));
                match misfit(function, &functions) {
                    Err(what) => found.error("pg.handler", place, format!("{what} (at {server})")),
                    Ok(Some(fitting)) => warn_about(fitting, &function.name, &place, found),
                    Ok(None) => {}
                }
            }
            Err(error) if code_of(&error).as_deref() == Some("42501") => {
                let what = format!(
                    "the login may not use the schema of {}: \"grant usage on schema …\" to it (at {server})",
                    function.name
                );
                found.error("pg.handler", place, what);
            }
            Err(error) => unexpected(found, "pg.handler", &server, error),
        }
    }
}

/// Compares the settings that decide about keys with those registered in the database.
pub async fn consumers(config: &Config, session: &mut Session, found: &mut CheckFindings) {
    if let Err(error) = compare(config, session, found).await {
        unexpected(found, "retention", &config.postgres.shown(), error);
    }
}

/// Formats the functions that were read.
fn listed(wanted: &SqlFunction, functions: &[HandlerFunction]) -> String {
    let forms = functions.iter().map(|function| {
        let argument = if function.batch { "oncely.message[]" } else { "oncely.message" };
        format!("{}({argument}) returns {}, owner {}", wanted.name, function.returns, function.owner)
    });
    let forms: Vec<String> = forms.collect();
    if forms.is_empty() { format!("no {}", wanted.name) } else { forms.join("; ") }
}

/// Returns the form of a configured handler to call, or why it can't be called.
fn misfit<'a>(
    wanted: &SqlFunction,
    found: &'a [HandlerFunction],
) -> Result<Option<&'a HandlerFunction>, String> {
    let signature = |batch: bool| {
        let (argument, result) =
            if batch { ("oncely.message[]", "setof oncely.result") } else { ("oncely.message", "jsonb") };
        (format!("{}({argument})", wanted.name), result)
    };
    let (name, result) = signature(wanted.batch);
    match found.iter().find(|function| function.batch == wanted.batch) {
        Some(function) if !function.is_function => Err(format!(
            "{name} is a procedure, an aggregate or a window function, and must be a function: it runs inside the transaction that \
             records the message"
        )),
        Some(function) if function.fits && function.executable => Ok(Some(function)),
        Some(function) if function.fits => Err(format!(
            "the login {0} may not call {name}: grant execute on function {name} to {0}",
            function.login
        )),
        Some(function) => Err(format!("{name} returns {}, and must return {result}", function.returns)),
        None if found.is_empty() => Err(format!("there is no function {name}")),
        None => {
            let (other, _) = signature(!wanted.batch);
            Err(format!("there is no function {name}, but {other}: set batch = {}", !wanted.batch))
        }
    }
}

/// Reports doubtful properties of a callable handler.
fn warn_about(function: &HandlerFunction, name: &str, place: &str, found: &mut CheckFindings) {
    if !function.is_volatile {
        let what = format!(
            "{name} is declared stable or immutable: PostgreSQL lets it write nothing, and may call it less often than there are \
             messages; declare it volatile"
        );
        found.warning("pg.handler", place, what);
    }
    if function.runs_as_superuser {
        let what = format!(
            "{name} is SECURITY DEFINER and belongs to {}, a superuser: what a message makes it do it may do to everything; give it \
             an owner that has no more rights than its work takes",
            function.owner
        );
        found.warning("pg.handler", place, what);
    }
}

async fn compare(config: &Config, session: &mut Session, found: &mut CheckFindings) -> sqlx::Result<()> {
    let known = pg::known_consumers(&mut session.connection).await?;
    let show = humantime::format_duration;
    for consumer in &config.consumers {
        let name = &consumer.name;
        let Some(known) = known.iter().find(|known| known.consumer == name.as_str()) else {
            for check in ["retention", "fingerprint"] {
                found.add_read(check, format!("{name}: no worker of it has started on this database"));
            }
            continue;
        };
        found.add_read(
            "retention",
            format!(
                "{name}: {} in the file, {} in the database",
                show(consumer.retention),
                show(known.retention)
            ),
        );
        found.add_read(
            "fingerprint",
            format!(
                "{name}: {} in the file, {} in the database",
                consumer.fingerprint.name(),
                known.fingerprint
            ),
        );
        if consumer.retention < known.retention {
            let what = format!(
                "consumers.{name}.retention is {}, but the database keeps keys for {}, and that is used; to shorten it: `oncely \
                 retention set {name} {}`",
                show(consumer.retention),
                show(known.retention),
                show(consumer.retention).to_string().replace(' ', "")
            );
            found.info("retention", "", what);
        }
        if consumer.fingerprint.name() != known.fingerprint {
            let what = format!(
                "consumers.{name}.fingerprint is {}, and was {}: for keys that were stored before the key alone decides",
                consumer.fingerprint.name(),
                known.fingerprint
            );
            found.info("fingerprint", "", what);
        }
    }
    let refused = pg::clock_refused_at(&mut session.connection).await?;
    found.add_read("pg.maintenance", format!("a clock that nothing explains: {refused:?}"));
    if let Some(at) = refused {
        let what = format!(
            "nothing is collected: the database's clock said {}, and nothing explained that; see `oncely gc run`",
            at.format("%Y-%m-%d %H:%M:%SZ")
        );
        found.warning("pg.maintenance", "", what);
    }
    Ok(())
}
