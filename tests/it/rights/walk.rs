//! A walk through everything that the catalogue lists, as one login after the other: each verb on each table and view, each function
//! with plausible arguments. What is shown, in results and in errors, is searched for what must not be seen.

use std::collections::BTreeMap;

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection, Row as _, ValueRef as _};

use crate::support::World;

/// A table, a partition, or a view.
pub(super) struct Relation {
    pub(super) name: String,
    columns: Vec<String>,
    /// Its rows are some tenant's.
    pub(super) has_tenant: bool,
}

/// A call with arguments that a caller might give.
struct Call {
    name: String,
    statement: String,
}

/// All that there is to try.
pub(super) struct Catalogue {
    pub(super) relations: Vec<Relation>,
    calls: Vec<Call>,
}

/// What a login can have planned, by the statement; refused ones left out.
pub(super) type Plans = BTreeMap<String, String>;

/// What a login must not see.
pub(super) struct Secrets<'a> {
    /// Nowhere in what tables and views show.
    pub(super) in_rows: &'a [&'a str],
    /// Nor in what functions show; names that are given as arguments may come back.
    pub(super) in_calls: &'a [&'a str],
    /// Only in tables and views with tenants' rows.
    pub(super) of_tenants_alone: bool,
}

/// What a walk found.
#[derive(Default)]
pub(super) struct Found {
    /// How often each verb was tried.
    pub(super) tried: BTreeMap<&'static str, u64>,
    /// How often it was done.
    pub(super) done: BTreeMap<&'static str, u64>,
    /// What was seen that must not be.
    pub(super) leaks: Vec<String>,
    /// All that was shown.
    pub(super) shown: String,
}

impl Catalogue {
    pub(super) async fn read(world: &mut World) -> Self {
        let query = "select c.relname::text, array_agg(a.attname::text order by a.attnum), bool_or(a.attname = 'tenant')
            from pg_class as c
            join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f')
            group by c.relname order by c.relname";
        let relations = sqlx::query(query).fetch_all(&mut world.sql).await.unwrap();
        let relations = relations
            .iter()
            .map(|row| Relation { name: row.get(0), columns: row.get(1), has_tenant: row.get(2) })
            .collect();
        let query = "select p.oid::regprocedure::text, p.proname::text,
                array(
                    select coalesce(a.name, '') || '|' || format_type(a.kind, null)
                    from unnest(
                        coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames,
                        coalesce(p.proargmodes, array_fill('i'::\"char\", array[p.pronargs::integer]))
                    ) with ordinality as a (kind, name, mode, place)
                    where a.mode in ('i', 'b') order by a.place
                )
            from pg_proc as p where p.pronamespace = 'oncely'::regnamespace order by 1";
        let functions = sqlx::query(query).fetch_all(&mut world.sql).await.unwrap();
        let calls = functions
            .iter()
            .flat_map(|row| {
                let arguments: Vec<String> = row.get(2);
                let function: String = row.get(1);
                let statements = ["globex", "acme"].map(|tenant| {
                    let arguments: Vec<String> =
                        arguments.iter().map(|argument| value(argument, tenant)).collect();
                    format!("select r::text from oncely.{function}({}) as r", arguments.join(", "))
                });
                let differ = statements[0] != statements[1];
                let name: String = row.get(0);
                statements
                    .into_iter()
                    .take(if differ { 2 } else { 1 })
                    .map(move |statement| Call { name: name.clone(), statement })
                    .collect::<Vec<_>>()
            })
            .collect();
        Self { relations, calls }
    }

    /// Tries everything.
    pub(super) async fn walk(&self, login: &str, sql: &mut PgConnection, secrets: &Secrets<'_>) -> Found {
        let mut found = Found::default();
        let mut walk = Walk { login, sql, found: &mut found };
        walk.sql.execute("set statement_timeout = '10s'").await.unwrap();
        for relation in &self.relations {
            let secret = match secrets.of_tenants_alone && !relation.has_tenant {
                true => &[],
                false => secrets.in_rows,
            };
            walk.relation(relation, secret).await;
        }
        for (object, statement) in AROUND {
            // Who may read tables that are of no tenant may read their statistics.
            let statement = match secrets.of_tenants_alone {
                true => statement.replace("true", OF_TENANTS),
                false => statement.to_owned(),
            };
            walk.attempt("SELECT", object, &statement, secrets.in_calls).await;
        }
        for call in &self.calls {
            walk.attempt("EXECUTE", &call.name, &call.statement, secrets.in_calls).await;
        }
        found
    }
}

impl Catalogue {
    /// Has every statement planned that a login may ask over tables, views, columns and functions, without running any.
    pub(super) async fn plans(&self, sql: &mut PgConnection) -> Plans {
        let mut asked = Vec::new();
        for Relation { name, columns, .. } in &self.relations {
            let of = format!("oncely.\"{name}\"");
            asked.push(format!("select count(*) from {of}"));
            asked.push(format!("select from {of} where tenant = 'globex'"));
            asked.push(format!("select from {of} where tenant = any (array['acme'])"));
            for column in columns {
                asked.push(format!("select \"{column}\" from {of}"));
                asked.push(format!("select from {of} where \"{column}\"::text = 'zebra'"));
                asked.push(format!("select from {of} where \"{column}\" = 'zebra'"));
                asked.push(format!("select \"{column}\" from {of} group by 1"));
            }
        }
        for Call { statement, .. } in &self.calls {
            asked.push(statement.clone());
            asked.push(statement.replace(" as r", " as r where r::text like '%zebra%'"));
            asked.push(statement.replace("select r::text", "select r.tenant") + " group by 1");
        }
        let mut plans = Plans::new();
        for statement in asked {
            let explain = format!("explain (format json) {statement}");
            if let Ok(rows) = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut *sql).await {
                plans.insert(statement, rows[0].try_get_raw(0).unwrap().as_str().unwrap().to_owned());
            }
        }
        for (object, statement) in AROUND.iter().filter(|(object, _)| object.starts_with("pg_stats")) {
            let rows = sqlx::raw_sql(*statement).fetch_all(&mut *sql).await.unwrap();
            let mut rows: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
            rows.sort_unstable();
            plans.insert((*object).to_owned(), rows.join("\n"));
        }
        plans
    }
}

const OF_TENANTS: &str = "exists (
    select from pg_attribute as a
    where a.attrelid = format('%I.%I', s.schemaname, s.tablename)::regclass and a.attname = 'tenant'
)";

/// What PostgreSQL tells of tables beside them: samples of values, and what others are asking.
const AROUND: [(&str, &str); 3] = [
    ("pg_stats", "select s::text from pg_stats as s where s.schemaname = 'oncely' and true"),
    ("pg_stats_ext", "select s::text from pg_stats_ext as s where s.schemaname = 'oncely'"),
    ("pg_stat_activity", "select a.query from pg_stat_activity as a where a.datname = current_database()"),
];

/// An argument: of this tenant where it names one, else what would be a valid call.
fn value(argument: &str, tenant: &str) -> String {
    let (name, kind) = argument.split_once('|').unwrap();
    let (of_tenant, of_tenants) = (format!("'{tenant}'"), format!("array['{tenant}']"));
    let value = match (name, kind) {
        ("tenant" | "place_tenant" | "of_tenant", "text") => of_tenant.as_str(),
        ("tenants" | "of_tenants", "text[]") => of_tenants.as_str(),
        ("consumer" | "of_consumer", "text") => "'payments'",
        ("of_key", "text") => "'k'",
        ("since", "timestamp with time zone") => "now() - interval '1 day'",
        ("until", "timestamp with time zone") => "now() + interval '1 day'",
        ("most", "bigint") => "100",
        // A filter that is off.
        (name, kind) if name.starts_with("of_") || name.starts_with("behind") => {
            return format!("{name} => null::{kind}");
        }
        ("verb", "text") => "'read'",
        ("login", "text") => "session_user",
        ("state", "text") => "'ready'",
        ("kind", "text") => "'worker'",
        ("on_conflict", "text") => "'duplicate'",
        (_, "text") => "'k'",
        (_, "text[]") => "array['k']",
        (_, "uuid") => "'00000000-0000-8000-8000-00000000000b'::uuid",
        (_, "uuid[]") => "array['00000000-0000-8000-8000-00000000000b'::uuid]",
        (_, "timestamp with time zone") => "now()",
        (_, "interval") => "interval '7 days'",
        ("seqs", "integer[]") => "array[1]",
        (_, "integer" | "bigint") => "1",
        (_, "boolean") => "true",
        (_, "jsonb") => "'[]'::jsonb",
        (_, "bytea") => "sha256('{}')",
        _ => return format!("{name} => null::{kind}"),
    };
    format!("{name} => {value}")
}

struct Walk<'a> {
    login: &'a str,
    sql: &'a mut PgConnection,
    found: &'a mut Found,
}

impl Walk<'_> {
    async fn relation(&mut self, relation: &Relation, secrets: &[&str]) {
        let Relation { name, columns, .. } = relation;
        let of = format!("oncely.\"{name}\"");
        let mut attempts = vec![
            ("SELECT", format!("select t::text from {of} as t")),
            ("SELECT", format!("table {of}")),
            ("SELECT", format!("select count(*) from {of}")),
            ("INSERT", format!("insert into {of} select * from {of} returning *")),
            ("INSERT", format!("insert into {of} default values returning *")),
            ("DELETE", format!("delete from {of} as t returning t::text")),
            ("DELETE", format!("truncate {of}")),
        ];
        for column in columns {
            let column = format!("\"{column}\"");
            attempts.extend([
                ("SELECT", format!("select {column}::text from {of}")),
                // What an error says of a row that the policy hides.
                ("SELECT", format!("select count(*) from {of} where {column}::text::bigint = 1")),
                ("SELECT", format!("select max({column}::text) from {of} where tenant = 'globex'")),
                ("SELECT", format!("select {column}::text from {of} for update")),
                ("UPDATE", format!("update {of} set {column} = {column} returning {column}::text")),
                ("UPDATE", format!("update {of} set {column} = null where {column}::text::bigint = 1")),
                (
                    "DELETE",
                    format!("delete from {of} where {column}::text::bigint = 1 returning {column}::text"),
                ),
            ]);
        }
        for (verb, statement) in attempts {
            self.attempt(verb, name, &statement, secrets).await;
        }
    }

    /// Tries a statement in a transaction that is taken back.
    async fn attempt(&mut self, verb: &'static str, object: &str, statement: &str, secrets: &[&str]) {
        *self.found.tried.entry(verb).or_default() += 1;
        self.sql.execute("begin").await.unwrap();
        let answer = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).fetch_all(&mut *self.sql).await;
        let answer = answer.map(|rows| {
            let texts = rows.iter().flat_map(|row| {
                (0..row.len()).map(|place| {
                    let value = row.try_get_raw(place).unwrap();
                    if value.is_null() { String::new() } else { value.as_str().unwrap().to_owned() }
                })
            });
            texts.collect::<Vec<_>>().join("\n")
        });
        self.sql.execute("rollback").await.unwrap();
        let shown = match answer {
            Ok(shown) => {
                *self.found.done.entry(verb).or_default() += 1;
                shown
            }
            // With detail, hint and where it was.
            Err(error) => format!("{error} {:?}", error.as_database_error()),
        };
        let lower = shown.to_lowercase();
        for secret in secrets {
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            if lower.contains(secret) || lower.contains(&hex) {
                self.found.leaks.push(format!("{} {verb} {object}: {secret} by {statement}", self.login));
            }
        }
        self.found.shown.push_str(&shown);
        self.found.shown.push('\n');
    }
}

/// Closes a session that has walked.
pub(super) async fn close(sql: PgConnection) {
    sql.close().await.unwrap();
}
