//! Checks that the configured engine is the one behind the tables.

use super::CheckFindings;
use super::postgres::report_query_error;
use oncely_config::Config;
use oncely_core::decide::PrecheckMode;
use oncely_postgres::{self as pg, Session};

const CHECK: &str = "pg.engine";
/// Server, in findings about a failed query.
const SERVER: &str = "PostgreSQL";

/// Checks that a worker knows of the nodes over which the tables are spread, if they are.
pub async fn check_worker_engine(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    let limit = config.postgres.client_timeout();
    let is_spread = match pg::wait_for_answer(limit, pg::is_spread(&mut session.connection)).await {
        Ok(is_spread) => is_spread,
        Err(error) => return report_query_error(findings, CHECK, SERVER, error),
    };
    findings
        .add_read(CHECK, if is_spread { "tables are spread over nodes" } else { "tables are on one server" });
    match (config.postgres.citus.is_some(), is_spread) {
        (true, false) => {
            let text = "is \"citus\", and the tables are not spread over nodes: `oncely migrate --citus`, or leave it out";
            findings.add_error(CHECK, "postgres.engine", text);
        }
        (false, true) if trusts_mirror(config) => {
            let text = "is not \"citus\", and the tables are spread over nodes: the mirror would be trusted for the epoch of this server, which is \
                 not that of the nodes. Set it to \"citus\", or precheck to \"verify\" or \"off\"";
            findings.add_error(CHECK, "postgres.engine", text);
        }
        (false, true) => {
            let text = "is not \"citus\", and the tables are spread over nodes: messages of other nodes' tenants are forwarded by this server";
            findings.add_info(CHECK, "postgres.engine", text);
        }
        (_, _) => {}
    }
}

/// Checks that the relay's server keeps rows: a relay serves the server that it is connected to.
pub async fn check_relay_engine(config: &Config, session: &mut Session, findings: &mut CheckFindings) {
    let limit = config.postgres.client_timeout();
    match pg::wait_for_answer(limit, pg::list_units(&mut session.connection)).await {
        Ok(units) => {
            findings.add_read(CHECK, format!("{} units of work", units.len()));
            if units.is_empty() {
                let text = "names a server of a cluster that keeps no part of the tables: a relay serves the node that it is connected to, so name one";
                findings.add_error(CHECK, "postgres.url", text);
            }
        }
        Err(error) => report_query_error(findings, CHECK, SERVER, error),
    }
}

/// Returns whether a consumer believes the mirror without asking PostgreSQL, always or at times.
fn trusts_mirror(config: &Config) -> bool {
    config.mirror.as_ref().is_some_and(|mirror| {
        let mode = |precheck: Option<PrecheckMode>| precheck.unwrap_or(mirror.precheck);
        config
            .consumers
            .iter()
            .any(|consumer| matches!(mode(consumer.precheck), PrecheckMode::Trust | PrecheckMode::Auto))
    })
}
