//! Rights of the login: `pg.grants`, `pg.powers`.

use super::check_session::{CheckSession, ask};
use super::role::Role;
use oncely_postgres::{self as pg, LoginPrivileges};
use oncely_process::preflight::CheckFindings;

/// Returns the login's role: the given one, otherwise that of its grants. Reports missing grants.
pub(super) async fn role(said: Option<Role>, asking: &mut CheckSession<'_>) -> Role {
    const CHECK: &str = "pg.grants";
    let Some(roles) = ask!(asking, CHECK, pg::login_roles) else { return said.unwrap_or(Role::Worker) };
    let has = |role: Role| roles.iter().any(|one| one.role == role.name() && one.granted);
    // The first role that the login has. A superuser has all; without any role everything is checked.
    let role = said.or_else(|| Role::ALL.into_iter().find(|role| has(*role))).unwrap_or(Role::Worker);
    let login = roles.first().map(|one| one.login.clone()).unwrap_or_default();
    let listed: Vec<&str> = Role::ALL.iter().filter(|role| has(**role)).map(|role| role.name()).collect();
    asking.found.add_read(CHECK, format!("the login {login} has the roles {}", listed.join(", ")));
    if !has(role) && roles.iter().any(|one| one.role == role.name()) {
        let what = format!("the login {login} lacks the role {0}: grant {0} to {login}", role.name());
        asking.found.error(CHECK, "postgres.url", what);
        return role;
    }
    if let Some(missing) = ask!(asking, CHECK, pg::missing_privileges, role.privileges())
        && !missing.is_empty()
    {
        let what = format!(
            "the role {} lacks {}: it was revoked; grant it again, as the migration of the roles does",
            role.name(),
            missing.join(", ")
        );
        asking.found.error(CHECK, "postgres.url", what);
    }
    role
}

pub(super) async fn powers(asking: &mut CheckSession<'_>) {
    if let Some(powers) = ask!(asking, "pg.powers", pg::login_powers) {
        judge(&powers, asking.found);
    }
}

fn judge(powers: &LoginPrivileges, found: &mut CheckFindings) {
    const CHECK: &str = "pg.powers";
    let login = powers.login.as_str();
    found.add_read(CHECK, format!("the login {login}, with the roles {}", powers.roles.join(", ")));
    if powers.superuser {
        let what = "is a superuser: it may change keys, the trail and everything else, and so may SQL injected into a \
                    handler; give each process a login of its own";
        found.warning(CHECK, login, what);
        return;
    }
    for (has, what) in [
        (
            powers.bypasses_row_security,
            "skips row-level security (BYPASSRLS): what was done could be done again",
        ),
        (powers.creates_roles, "may create roles (CREATEROLE), and grant itself what it likes"),
        (powers.replicates, "may replicate (REPLICATION), and read every table"),
    ] {
        if has {
            found.warning(CHECK, login, what);
        }
    }
    if powers.owner {
        let what = "owns the schema oncely, or is a member of its owner: it may change its functions, its tables and the trail; migrate \
                    with a login of its own";
        found.warning(CHECK, login, what);
        return;
    }
    if powers.creates {
        found.warning(CHECK, login, "may create objects in the schema oncely");
    }
    if !powers.trail.is_empty() {
        let what = format!("may {} the trail: revoke {0} on oncely.audit from it", powers.trail.join(", "));
        found.warning(CHECK, login, what);
    }
    let is = |role: Role| powers.roles.iter().any(|one| one == role.name());
    if is(Role::Operator) && (is(Role::Worker) || is(Role::Relay)) {
        let what = "is a process and an operator at once: SQL injected into a handler may requeue, discard and pause";
        found.warning(CHECK, login, what);
    }
    if is(Role::Operator) && powers.roles.iter().any(|one| one == "oncely_tenant_auditor") {
        let what = "reads the rows of some tenants alone, and is an operator: what it sees is bounded, and what it does is not";
        found.warning(CHECK, login, what);
    }
}
