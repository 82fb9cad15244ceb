//! What the session's login may do: too little for its work, or too much.

use sqlx::PgConnection;

/// What a login may do beyond the rights of its role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoginPowers {
    pub(crate) login: String,
    pub(crate) superuser: bool,
    pub(crate) bypasses_row_security: bool,
    pub(crate) creates_roles: bool,
    pub(crate) replicates: bool,
    /// It is the owner of the schema, or a member of it.
    pub(crate) owner: bool,
    /// It may create objects in the schema.
    pub(crate) creates: bool,
    /// Of update, delete, truncate: what it may do to the trail.
    pub(crate) trail: Vec<String>,
    /// Roles of Oncely that it is a member of.
    pub(crate) roles: Vec<String>,
}

/// Asks.
pub(crate) async fn login_powers(connection: &mut PgConnection) -> Result<LoginPowers, sqlx::Error> {
    sqlx::query_as!(
        LoginPowers,
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

/// Which of these privileges the login lacks, as `insert on oncely.audit`. A right to some column counts.
pub(crate) async fn missing_privileges(
    connection: &mut PgConnection,
    wanted: &[(&str, &str)],
) -> Result<Vec<String>, sqlx::Error> {
    let (privileges, objects): (Vec<String>, Vec<String>) =
        wanted.iter().map(|(privilege, object)| ((*privilege).to_owned(), (*object).to_owned())).unzip();
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
