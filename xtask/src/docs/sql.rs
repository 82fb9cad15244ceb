//! The references of SQL functions, tables and rights, from the catalogue of a migrated database.

use std::collections::BTreeMap;
use std::path::Path;

use sqlx::{FromRow, PgConnection};

use super::{cell, head};
use crate::prepare;

/// Functions that callers are meant to use, by who they are. All others are Oncely's own.
const CALLERS: [(&str, &str, &[&str]); 5] = [
    ("For handlers", "Called inside a worker's transaction; [`emit`](#emit) as well.", &["reject", "refuse"]),
    (
        "For applications",
        "Called in a transaction of the application's own: [the SQL protocol](sql.md), [events](../how-to/events.md).",
        &["claim", "complete", "fail", "emit", "protocol_version"],
    ),
    (
        "For programs that hold leases",
        "Each commits by itself: [the SQL protocol](sql.md#leases), [effects outside PostgreSQL](../how-to/leases.md).",
        &[
            "claim_lease",
            "renew_lease",
            "begin_step",
            "checkpoint",
            "refuse_step",
            "complete_lease",
            "fail_lease",
            "release_lease",
            "step_key",
            "lease_protocol_version",
        ],
    ),
    (
        "For operators",
        "`oncely` calls them; they are there for SQL as well. Each leaves a row in `oncely.operator_actions`.",
        &[
            "grant_right",
            "revoke_rights",
            "settle_claim",
            "revoke_lease",
            "park",
            "set_retention",
            "accept_clock",
        ],
    ),
    ("To look", "They change nothing.", &["epoch", "bucket"]),
];

/// What the migrations made.
#[derive(Debug)]
pub(super) struct Catalogue {
    functions: Vec<Function>,
    relations: Vec<Relation>,
    columns: Vec<Column>,
    rights: Vec<Right>,
}

#[derive(Debug, FromRow)]
struct Function {
    name: String,
    arguments: String,
    result: String,
    comment: Option<String>,
    /// Roles that may call it; `public` for everybody.
    callers: Vec<String>,
}

#[derive(Debug, FromRow)]
struct Relation {
    name: String,
    /// As in `pg_class.relkind`.
    kind: String,
    comment: Option<String>,
}

#[derive(Debug, FromRow)]
struct Column {
    relation: String,
    name: String,
    kind: String,
    not_null: bool,
    initial: Option<String>,
    comment: Option<String>,
}

#[derive(Debug, FromRow)]
struct Right {
    role: String,
    relation: String,
    verb: String,
    /// All columns, where it is null.
    column_name: Option<String>,
}

/// Migrates a database of its own and reads its catalogue.
pub(super) async fn catalogue(root: &Path) -> anyhow::Result<Catalogue> {
    prepare::run_in_database(async |database| {
        read(&mut database.migrate(&root.join("migrations")).await?).await
    })
    .await
}

async fn read(connection: &mut PgConnection) -> anyhow::Result<Catalogue> {
    let functions = "
        select p.proname::text as name,
               pg_get_function_arguments(p.oid) as arguments,
               pg_get_function_result(p.oid) as result,
               obj_description(p.oid, 'pg_proc') as comment,
               array(
                   select distinct case when a.grantee = 0 then 'public' else pg_get_userbyid(a.grantee)::text end
                   from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
                   where a.grantee <> p.proowner and a.privilege_type = 'EXECUTE'
                   order by 1
               ) as callers
        from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace
        order by 1, 2";
    let relations = "
        select c.relname::text as name, c.relkind::text as kind, obj_description(c.oid, 'pg_class') as comment
        from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p', 'v', 'c') and not c.relispartition
          and c.relname not like '\\_sqlx%'
        order by 1";
    let columns = "
        select c.relname::text as relation, a.attname::text as name, format_type(a.atttypid, a.atttypmod) as kind,
               a.attnotnull as not_null, pg_get_expr(d.adbin, d.adrelid) as initial,
               col_description(c.oid, a.attnum) as comment
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        left join pg_attrdef as d on d.adrelid = c.oid and d.adnum = a.attnum
        where c.relnamespace = 'oncely'::regnamespace and not c.relispartition
        order by 1, a.attnum";
    let rights = "
        select pg_get_userbyid(a.grantee)::text as role, c.relname::text as relation, lower(a.privilege_type) as verb,
               null::text as column_name
        from pg_class as c, aclexplode(c.relacl) as a
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
          and a.grantee <> c.relowner and a.grantee <> 0 and c.relname not like '\\_sqlx%'
        union all
        select pg_get_userbyid(a.grantee)::text, c.relname::text, lower(a.privilege_type), t.attname::text
        from pg_class as c
        join pg_attribute as t on t.attrelid = c.oid and t.attnum > 0
        cross join aclexplode(t.attacl) as a
        where c.relnamespace = 'oncely'::regnamespace and not c.relispartition and a.grantee <> c.relowner
        order by 1, 2, 3, 4";
    Ok(Catalogue {
        functions: sqlx::query_as(functions).fetch_all(&mut *connection).await?,
        relations: sqlx::query_as(relations).fetch_all(&mut *connection).await?,
        columns: sqlx::query_as(columns).fetch_all(&mut *connection).await?,
        rights: sqlx::query_as(rights).fetch_all(&mut *connection).await?,
    })
}

/// The page of the functions.
pub(super) fn functions(catalogue: &Catalogue) -> anyhow::Result<String> {
    let mut page = head("SQL functions", "the migrated database");
    page.push_str(
        "All functions of the schema `oncely`. The first sections are for callers; what is below [Oncely's own](#oncelys-own) may \
         change with any release. Everybody is who may use the schema: each of the roles.\n\n",
    );
    for (title, text, names) in CALLERS {
        page.push_str(&format!("## {title}\n\n{text}\n\n"));
        for name in names {
            let forms: Vec<&Function> = catalogue.functions.iter().filter(|f| f.name == *name).collect();
            anyhow::ensure!(
                !forms.is_empty(),
                "there is no function oncely.{name}: mend the list in {}",
                file!()
            );
            page.push_str(&format!("### `{name}`\n\n"));
            for form in forms {
                page.push_str(&format!("```sql\n{}\n```\n\n", signature(form)));
                page.push_str(&format!("{}\n\n", cell(form.comment.as_deref().unwrap_or("(no comment)"))));
                page.push_str(&format!("May call it: {}.\n\n", callers(form)));
            }
        }
    }
    page.push_str(
        "## Oncely's own\n\nCalled by workers, relays and `oncely`. They may change with any release.\n\n",
    );
    page.push_str("| function | what it does | may call it |\n| --- | --- | --- |\n");
    let is_public = |name: &str| CALLERS.iter().any(|(_, _, names)| names.contains(&name));
    for function in catalogue.functions.iter().filter(|f| !is_public(&f.name)) {
        page.push_str(&format!(
            "| `{}({})` | {} | {} |\n",
            function.name,
            cell(&types(&function.arguments)),
            cell(function.comment.as_deref().unwrap_or("")),
            callers(function)
        ));
    }
    Ok(page)
}

fn signature(function: &Function) -> String {
    let arguments: Vec<&str> = split(&function.arguments);
    let joined = match arguments.len() {
        0..=2 => arguments.join(", "),
        _ => format!("\n    {}\n", arguments.join(",\n    ")),
    };
    format!("oncely.{}({joined}) returns {}", function.name, function.result)
}

/// Arguments at their commas, but for those inside of brackets and texts.
fn split(arguments: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut from, mut found) = (0_i32, false, 0, Vec::new());
    for (at, character) in arguments.char_indices() {
        match character {
            '\'' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            ',' if depth == 0 && !quoted => {
                found.push(arguments[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    found.push(arguments[from..].trim());
    found.retain(|argument| !argument.is_empty());
    found
}

/// The names of the arguments are enough where nobody is to call it.
fn types(arguments: &str) -> String {
    let taken = split(arguments).into_iter().filter(|argument| !argument.starts_with("OUT "));
    taken.map(|argument| argument.split(' ').next().unwrap_or(argument)).collect::<Vec<_>>().join(", ")
}

fn callers(function: &Function) -> String {
    match function.callers.as_slice() {
        [] => "the owner alone".to_owned(),
        callers if callers.iter().any(|role| role == "public") => "everybody".to_owned(),
        callers => callers.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", "),
    }
}

/// The page of tables, views, types and rights.
pub(super) fn tables(catalogue: &Catalogue) -> anyhow::Result<String> {
    let mut page = head("SQL tables, views and types", "the migrated database");
    page.push_str(
        "What stands in the schema `oncely`. The columns of `audit`, `processed_keys`, `dead_letters` and `events` are part of what a \
         version promises; write to none of these tables by hand.\n\n",
    );
    let kinds = [("Types", "Type", "c"), ("Views", "View", "v"), ("Tables", "Table", "rp")];
    for (_, word, kinds) in kinds {
        for relation in catalogue.relations.iter().filter(|r| kinds.contains(r.kind.as_str())) {
            page.push_str(&format!("## {word} `{}`\n\n", relation.name));
            if let Some(comment) = &relation.comment {
                page.push_str(&format!("{}\n\n", cell(comment)));
            }
            page.push_str("| column | type | meaning |\n| --- | --- | --- |\n");
            for column in catalogue.columns.iter().filter(|c| c.relation == relation.name) {
                page.push_str(&format!("| `{}` | {} | {} |\n", column.name, kind(column), meaning(column)));
            }
            page.push('\n');
        }
    }
    rights(&mut page, catalogue);
    Ok(page.trim_end().to_owned() + "\n")
}

fn kind(column: &Column) -> String {
    let null = if column.not_null { ", not null" } else { "" };
    format!("{}{null}", cell(&column.kind))
}

fn meaning(column: &Column) -> String {
    let comment = cell(column.comment.as_deref().unwrap_or(""));
    match &column.initial {
        Some(initial) if comment.is_empty() => format!("default `{}`", cell(initial)),
        Some(initial) => format!("{comment} Default `{}`.", cell(initial)),
        None => comment,
    }
}

fn rights(page: &mut String, catalogue: &Catalogue) {
    page.push_str(
        "## What the roles may do\n\nBeside the [functions](sql-functions.md) that name them. Where columns are named, it is these \
         alone. The roles `oncely_consumer` and `oncely_emitter` touch no table.\n\n",
    );
    let mut roles: BTreeMap<&str, BTreeMap<&str, BTreeMap<&str, Vec<&str>>>> = BTreeMap::new();
    for right in &catalogue.rights {
        let tables = roles.entry(&right.role).or_default();
        let columns = tables.entry(&right.relation).or_default().entry(&right.verb).or_default();
        columns.extend(right.column_name.as_deref());
    }
    for (role, tables) in roles {
        page.push_str(&format!("### `{role}`\n\n| table or view | may |\n| --- | --- |\n"));
        for (table, verbs) in tables {
            let verbs = verbs.into_iter().map(|(verb, columns)| match columns.is_empty() {
                true => verb.to_owned(),
                false => format!("{verb} ({})", columns.join(", ")),
            });
            page.push_str(&format!("| `{table}` | {} |\n", verbs.collect::<Vec<_>>().join(", ")));
        }
        page.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_at_their_own_commas() {
        let arguments = "a text, b numeric(10,2) DEFAULT 0, c text DEFAULT 'x, y'::text";
        assert_eq!(split(arguments), ["a text", "b numeric(10,2) DEFAULT 0", "c text DEFAULT 'x, y'::text"]);
        assert_eq!(types(arguments), "a, b, c");
        assert_eq!(split(""), [""; 0]);
    }
}
