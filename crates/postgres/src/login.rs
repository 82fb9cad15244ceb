//! Checks a login's privileges: too few for its work, or too many.

use sqlx::PgConnection;

/// The privileges of a login beyond those of its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginPrivileges {
    pub login: String,
    pub superuser: bool,
    pub bypasses_row_security: bool,
    pub creates_roles: bool,
    pub replicates: bool,
    /// Whether it is the owner of the schema, or a member of that role.
    pub owner: bool,
    /// Whether it may create objects in the schema.
    pub creates: bool,
    /// Those of update, delete and truncate that it may do to the audit trail.
    pub trail: Vec<String>,
    /// Oncely's roles that it is a member of.
    pub roles: Vec<String>,
}

/// Reads the privileges of the session's login.
pub async fn read_login_privileges(connection: &mut PgConnection) -> sqlx::Result<LoginPrivileges> {
    sqlx::query_as!(
        LoginPrivileges,
        r#"select r.rolname::text as "login!", r.rolsuper as "superuser!", r.rolbypassrls as "bypasses_row_security!",
            r.rolcreaterole as "creates_roles!", r.rolreplication as "replicates!",
            pg_has_role(current_user, n.nspowner, 'member') as "owner!", has_schema_privilege('oncely', 'create') as "creates!",
            array(
                select p.privilege from unnest(array['update', 'delete', 'truncate']) as p (privilege)
                where has_table_privilege('oncely.audit', p.privilege)
            ) as "trail!",
            array(
                select o.rolname::text from pg_roles as o
                where o.rolname in (
                        'oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor', 'oncely_tenant_auditor'
                    )
                  and pg_has_role(current_user, o.oid, 'member')
                order by o.rolname
            ) as "roles!"
        from pg_roles as r
        join pg_namespace as n on n.nspname = 'oncely'
        where r.rolname = current_user"#
    )
    .fetch_one(connection)
    .await
}

/// Lists those of these privileges that the login lacks, as `insert on oncely.audit`. A privilege on any column counts.
pub async fn list_missing_privileges(
    connection: &mut PgConnection,
    privileges_on_objects: &[(&str, &str)],
) -> sqlx::Result<Vec<String>> {
    let (privileges, objects): (Vec<String>, Vec<String>) = privileges_on_objects
        .iter()
        .map(|(privilege, object)| ((*privilege).to_owned(), (*object).to_owned()))
        .unzip();
    sqlx::query_scalar!(
        r#"select format('%s on %s', w.privilege, w.object) as "missing!"
        from unnest($1::text[], $2::text[]) as w (privilege, object)
        where not case
            when w.privilege = 'execute' then has_function_privilege(to_regproc(w.object), w.privilege)
            else has_any_column_privilege(w.object, w.privilege)
        end"#,
        &privileges,
        &objects
    )
    .fetch_all(connection)
    .await
}
