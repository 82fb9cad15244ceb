//! A Citus cluster, as the connected node sees it: `citus.*`.

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use super::words::format_duration;
use oncely_postgres::{self as pg, CitusState};
use oncely_process::preflight::CheckFindings;

const TABLES: &str = "citus.tables";
const POLICIES: &str = "citus.policies";
const PREPARED: &str = "citus.prepared";

/// Runs the checks of a cluster; they read nothing without one.
pub(super) async fn run_checks(limits: &Limits, session: &mut CheckSession<'_>) {
    let Some(state) = query_or_skip!(session, TABLES, pg::read_citus_state, limits.prepared) else {
        for check in [POLICIES, PREPARED] {
            session
                .findings
                .add_skipped(check, "the state of the cluster could not be read: see citus.tables");
        }
        return;
    };
    match state {
        None => {
            [TABLES, POLICIES, PREPARED].map(|check| session.findings.add_read(check, "no Citus cluster"))
        }
        Some(state) => [
            check_tables(&state, session.findings),
            check_policies(&state, session.findings),
            check_prepared(&state, limits, session.findings),
        ],
    };
}

/// Checks that all tables are spread, and that a tenant's rows lie together.
fn check_tables(state: &CitusState, findings: &mut CheckFindings) {
    findings.add_read(TABLES, format!("Citus {}, {} shards at this node", state.version, state.shards));
    for table in &state.unspread {
        let text = "is not spread over the nodes: run `oncely migrate --citus` at the coordinator";
        findings.add_error(TABLES, table.as_str(), text);
    }
    for table in &state.apart {
        let text = "is distributed, and a tenant's rows lie apart from its keys: a transaction that writes both has two phases. Distribute it with \
             colocate_with => 'oncely.idempotency_keys', by a column tenant (text collate \"C\")";
        findings.add_warning(TABLES, table.as_str(), text);
    }
}

/// Checks that the shards have the policies of their tables: Citus makes them, and changes them with the tables.
fn check_policies(state: &CitusState, findings: &mut CheckFindings) {
    findings.add_read(POLICIES, format!("policies of {} shards", state.shards));
    for shard in &state.unprotected {
        let text = "lacks a policy of its table, so a login may see rows of other tenants here: drop and create the policy at the coordinator";
        findings.add_error(POLICIES, shard.as_str(), text);
    }
}

/// Checks that transactions of two phases end.
fn check_prepared(state: &CitusState, limits: &Limits, findings: &mut CheckFindings) {
    let age = format_duration(limits.prepared);
    findings.add_read(PREPARED, format!("{} prepared for over {age}", state.old_prepared));
    if state.old_prepared > 0 {
        let text = format!(
            "{} transactions have been prepared for over {age}, and hold their keys: select recover_prepared_transactions() at the node that began \
             them (Citus does so every citus.recover_2pc_interval); a handler that writes rows of other tenants makes such",
            state.old_prepared
        );
        findings.add_warning(PREPARED, "pg_prepared_xacts", text);
    }
}
