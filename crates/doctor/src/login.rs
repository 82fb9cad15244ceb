//! Rights of the login: `pg.grants`, `pg.powers`.

use super::check_session::{CheckSession, query_or_skip};
use super::role::Role;
use oncely_postgres::{self as pg, LoginPrivileges};
use oncely_process::preflight::CheckFindings;

/// Returns the role of the login: the given one, otherwise that of its grants. Checks that the login has the role, and the role its
/// privileges.
pub(super) async fn check_role(configured_role: Option<Role>, session: &mut CheckSession<'_>) -> Role {
    const CHECK: &str = "pg.grants";
    let Some(roles) = query_or_skip!(session, CHECK, pg::list_login_roles) else {
        return configured_role.unwrap_or(Role::Worker);
    };
    let has = |role: Role| roles.iter().any(|one| one.role == role.name() && one.granted);
    // The first role that the login has. A superuser has all; without any role everything is checked.
    let role =
        configured_role.or_else(|| Role::ALL.into_iter().find(|role| has(*role))).unwrap_or(Role::Worker);
    let login = roles.first().map(|one| one.login.clone()).unwrap_or_default();
    let role_names: Vec<&str> = Role::ALL.iter().filter(|role| has(**role)).map(|role| role.name()).collect();
    session.findings.add_read(CHECK, format!("the login {login} has the roles {}", role_names.join(", ")));
    if !has(role) && roles.iter().any(|one| one.role == role.name()) {
        let text = format!("the login {login} lacks the role {0}: grant {0} to {login}", role.name());
        session.findings.add_error(CHECK, "postgres.url", text);
        return role;
    }
    if let Some(missing) = query_or_skip!(session, CHECK, pg::list_missing_privileges, role.privileges())
        && !missing.is_empty()
    {
        let text = format!(
            "the role {} lacks {}: it was revoked; grant it again, as the migration of the roles does",
            role.name(),
            missing.join(", ")
        );
        session.findings.add_error(CHECK, "postgres.url", text);
    }
    role
}

/// Checks that the login has no other powers than its role needs.
pub(super) async fn check_powers(session: &mut CheckSession<'_>) {
    if let Some(powers) = query_or_skip!(session, "pg.powers", pg::read_login_privileges) {
        report_powers(&powers, session.findings);
    }
}

/// Adds a warning for each power that the login does not need.
fn report_powers(powers: &LoginPrivileges, findings: &mut CheckFindings) {
    const CHECK: &str = "pg.powers";
    let login = powers.login.as_str();
    findings.add_read(CHECK, format!("the login {login}, with the roles {}", powers.roles.join(", ")));
    if powers.superuser {
        let text = "is a superuser: it may change keys, the trail and everything else, and so may SQL injected into a \
                    handler; give each process a login of its own";
        findings.add_warning(CHECK, login, text);
        return;
    }
    for (has, text) in [
        (
            powers.bypasses_row_security,
            "skips row-level security (BYPASSRLS): what was done could be done again",
        ),
        (powers.creates_roles, "may create roles (CREATEROLE), and grant itself what it likes"),
        (powers.replicates, "may replicate (REPLICATION), and read every table"),
    ] {
        if has {
            findings.add_warning(CHECK, login, text);
        }
    }
    if powers.owner {
        let text = "owns the schema oncely, or is a member of its owner: it may change its functions, its tables and the trail; migrate \
                    with a login of its own";
        findings.add_warning(CHECK, login, text);
        return;
    }
    if powers.creates {
        findings.add_warning(CHECK, login, "may create objects in the schema oncely");
    }
    if !powers.trail.is_empty() {
        let text = format!("may {} the trail: revoke {0} on oncely.audit from it", powers.trail.join(", "));
        findings.add_warning(CHECK, login, text);
    }
    let is = |role: Role| powers.roles.iter().any(|one| one == role.name());
    if is(Role::Operator) && (is(Role::Worker) || is(Role::Relay)) {
        let text = "is a process and an operator at once: SQL injected into a handler may requeue, discard and pause";
        findings.add_warning(CHECK, login, text);
    }
    if is(Role::Worker) && is(Role::Relay) {
        let text = "is a worker and a relay at once: SQL injected into a handler may make completed keys runnable again";
        findings.add_warning(CHECK, login, text);
    }
    if powers.roles.len() > 1 && powers.roles.iter().any(|one| one == "oncely_tenant_auditor") {
        let text = "is a member of oncely_tenant_auditor and of a role that reads the rows of all tenants: in the tables it sees all of \
                    them; revoke one of the two";
        findings.add_warning(CHECK, login, text);
    }
}
