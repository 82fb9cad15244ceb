//! Checks that the consumers' functions exist, and that the database's settings of consumers equal the configuration.

use super::{CheckFindings, report_query_error, sqlstate};
use oncely_config::Config;
use oncely_handler::SqlFunction;
use oncely_postgres::{self as pg, HandlerFunction, Session};

/// Checks that the SQL function of every consumer exists, has the right signature, and may be called by the login. Queries the database.
pub async fn check_handlers(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    let server = config.postgres.redacted();
    for consumer in &config.consumers {
        if consumer.is_observer() {
            findings.add_read("pg.handler", format!("{}: it only observes, and calls none", consumer.name));
            continue;
        }
        let Some(function) = &consumer.handler else {
            let whose = match &consumer.http {
                Some(endpoint) => format!("{} does the work", endpoint.redacted()),
                None => "the program brings the handler".to_owned(),
            };
            findings.add_read("pg.handler", format!("{}: {whose}", consumer.name));
            continue;
        };
        let subject = format!("consumers.{}.handler.function", consumer.name);
        match pg::list_handler_functions(&mut session.connection, &function.name).await {
            Ok(functions) => {
                findings.add_read(
                    "pg.handler",
                    format!("{}: {}", consumer.name, format_functions(function, &functions)),
                );
                match find_callable(function, &functions) {
                    Err(text) => findings.add_error("pg.handler", subject, format!("{text} (at {server})")),
                    Ok(Some(fitting)) => add_warnings(fitting, &function.name, &subject, findings),
                    Ok(None) => {}
                }
            }
            Err(error) if sqlstate(&error).as_deref() == Some("42501") => {
                let text = format!(
                    "the login may not use the schema of {}: \"grant usage on schema …\" to it (at {server})",
                    function.name
                );
                findings.add_error("pg.handler", subject, text);
            }
            Err(error) => report_query_error(findings, "pg.handler", &server, error),
        }
    }
}

/// Checks that the settings that decide about keys equal those registered in the database. An error of a query is a finding.
pub async fn check_consumers(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    if let Err(error) = compare_consumers(config, session, findings).await {
        report_query_error(findings, "retention", &config.postgres.redacted(), error);
    }
}

/// Formats the signatures, results and owners of the functions that were found.
fn format_functions(handler: &SqlFunction, functions: &[HandlerFunction]) -> String {
    let signatures = functions.iter().map(|function| {
        let argument = if function.batch { "oncely.message[]" } else { "oncely.message" };
        format!("{}({argument}) returns {}, owner {}", handler.name, function.returns, function.owner)
    });
    let signatures: Vec<String> = signatures.collect();
    if signatures.is_empty() { format!("no {}", handler.name) } else { signatures.join("; ") }
}

/// Finds the function of a configured handler with its signature; never `None`. An error is the reason why it can't be called.
fn find_callable<'a>(
    handler: &SqlFunction,
    functions: &'a [HandlerFunction],
) -> Result<Option<&'a HandlerFunction>, String> {
    let signature = |batch: bool| {
        let (argument, result) =
            if batch { ("oncely.message[]", "setof oncely.result") } else { ("oncely.message", "jsonb") };
        (format!("{}({argument})", handler.name), result)
    };
    let (name, result) = signature(handler.batch);
    match functions.iter().find(|function| function.batch == handler.batch) {
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
        None if functions.is_empty() => Err(format!("there is no function {name}")),
        None => {
            let (other, _) = signature(!handler.batch);
            Err(format!("there is no function {name}, but {other}: set batch = {}", !handler.batch))
        }
    }
}

/// Adds a warning for each doubtful property of a handler that can be called.
fn add_warnings(function: &HandlerFunction, name: &str, subject: &str, findings: &mut CheckFindings) {
    if !function.is_volatile {
        let text = format!(
            "{name} is declared stable or immutable: PostgreSQL lets it write nothing, and may call it less often than there are \
             messages; declare it volatile"
        );
        findings.add_warning("pg.handler", subject, text);
    }
    if function.runs_as_superuser {
        let text = format!(
            "{name} is SECURITY DEFINER and belongs to {}, a superuser: what a message makes it do it may do to everything; give it \
             an owner that has no more rights than its work takes",
            function.owner
        );
        findings.add_warning("pg.handler", subject, text);
    }
}

/// Compares retention and fingerprint of the configured consumers with those in the database, and checks that no clock reading is refused.
async fn compare_consumers(
    config: &Config,
    session: &mut Session,
    findings: &mut CheckFindings,
) -> sqlx::Result<()> {
    let registered = pg::list_consumers(&mut session.connection).await?;
    let show = humantime::format_duration;
    for consumer in &config.consumers {
        let name = &consumer.name;
        let Some(registered) = registered.iter().find(|registered| registered.consumer == name.as_str())
        else {
            for check in ["retention", "fingerprint"] {
                findings.add_read(check, format!("{name}: no worker of it has started on this database"));
            }
            continue;
        };
        findings.add_read(
            "retention",
            format!(
                "{name}: {} in the file, {} in the database",
                show(consumer.retention),
                show(registered.retention)
            ),
        );
        findings.add_read(
            "fingerprint",
            format!(
                "{name}: {} in the file, {} in the database",
                consumer.fingerprint.name(),
                registered.fingerprint
            ),
        );
        if consumer.retention < registered.retention {
            let text = format!(
                "consumers.{name}.retention is {}, but the database keeps keys for {}, and that is used; to shorten it: `oncely \
                 retention set {name} {}`",
                show(consumer.retention),
                show(registered.retention),
                show(consumer.retention).to_string().replace(' ', "")
            );
            findings.add_info("retention", "", text);
        }
        if consumer.fingerprint.name() != registered.fingerprint {
            let text = format!(
                "consumers.{name}.fingerprint is {}, and was {}: for keys that were stored before the key alone decides",
                consumer.fingerprint.name(),
                registered.fingerprint
            );
            findings.add_info("fingerprint", "", text);
        }
    }
    let refused = pg::read_clock_refusal_time(&mut session.connection).await?;
    findings.add_read("pg.maintenance", format!("a clock that nothing explains: {refused:?}"));
    if let Some(at) = refused {
        let text = format!(
            "nothing is collected: the database's clock said {}, and nothing explained that; see `oncely gc run`",
            at.format("%Y-%m-%d %H:%M:%SZ")
        );
        findings.add_warning("pg.maintenance", "", text);
    }
    Ok(())
}
