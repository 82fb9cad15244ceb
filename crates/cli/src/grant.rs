//! `oncely grant`: rights of logins to use `oncely.claim` and `oncely.emit`, and to read rows.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use sqlx::Connection as _;

use super::connection::connect;
use super::output::{self, List, Output, Row, Times, escape};
use oncely_ops::exit;
use oncely_postgres::{RightFilter, RightRow, grant_right, list_rights, revoke_rights};

#[derive(Debug, Args)]
pub(super) struct GrantArguments {
    /// Login of PostgreSQL, or a role with logins as members
    #[arg(required_unless_present = "list")]
    login: Option<String>,
    /// Right to claim, complete and fail as this consumer
    #[arg(long)]
    consumer: Vec<String>,
    /// Right to have the dead letters that it stores requeued to this queue
    #[arg(long)]
    queue: Vec<String>,
    /// Tenant of the right; '*' for any, but not with --read
    #[arg(long, required_unless_present_any = ["list", "revoke"])]
    tenant: Option<String>,
    /// Right to emit events to the exchanges of --exchange
    #[arg(long)]
    emit: bool,
    /// Exchange; '' for the default one, which reaches every queue
    #[arg(long, requires = "emit")]
    exchange: Vec<String>,
    /// Right to read the rows of the tenant, as a member of oncely_tenant_auditor
    #[arg(long)]
    read: bool,
    /// Revoke the rights that match, or all of the login if none is given
    #[arg(long, conflicts_with = "list")]
    revoke: bool,
    /// List the rights that match
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    output: Output,
}

impl GrantArguments {
    /// Returns the rights that the options name, as verb and object; the object is `None` if `--emit` has no exchange.
    fn named_rights(&self) -> Vec<(&'static str, Option<String>)> {
        let consumers = self.consumer.iter().map(|name| ("consume", Some(name.clone())));
        let queues = self.queue.iter().map(|name| ("requeue", Some(name.clone())));
        let exchanges = self.exchange.iter().map(|name| ("emit", Some(name.clone())));
        let read = self.read.then(|| ("read", Some(String::new())));
        let mut objects: Vec<_> = consumers.chain(queues).chain(exchanges).chain(read).collect();
        if self.emit && self.exchange.is_empty() {
            objects.push(("emit", None));
        }
        objects
    }

    /// Returns the filters of the rights to show or revoke: any kind if the options name none.
    fn to_filters(&self) -> Vec<RightFilter> {
        let any =
            RightFilter { login: self.login.clone(), tenant: self.tenant.clone(), ..RightFilter::default() };
        let objects = self.named_rights();
        match objects.is_empty() {
            true => vec![any],
            false => objects
                .into_iter()
                .map(|(verb, object)| RightFilter { verb: Some(verb), object, ..any.clone() })
                .collect(),
        }
    }
}

const SCHEMA: &str = "oncely.grant/1";

pub(super) async fn run(file: &Path, arguments: GrantArguments, times: Times) -> crate::VerbResult {
    let is_grant = !arguments.list && !arguments.revoke;
    let rights: Option<Vec<(&str, String)>> =
        arguments.named_rights().into_iter().map(|(verb, object)| Some((verb, object?))).collect();
    let rights = rights.filter(|rights| !rights.is_empty());
    if is_grant && rights.is_none() {
        output::print_note(
            "no right is named: use --consumer, --queue, --emit with each --exchange, or --read",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    if is_grant && arguments.read && arguments.tenant.as_deref() == Some("*") {
        output::print_note(
            "a right to read is of one tenant; for all of them: grant oncely_auditor to the login",
        );
        return Ok(ExitCode::from(exit::USAGE));
    }
    let mut connection = connect(file, "oncely grant").await?;
    let mut transaction = connection.begin().await?;
    let login = arguments.login.as_deref().unwrap_or_default();
    let mut changed = 0;
    if is_grant {
        let tenant = arguments.tenant.as_deref().unwrap_or_default();
        for (verb, object) in rights.unwrap_or_default() {
            changed += i64::from(grant_right(&mut transaction, login, verb, &object, tenant).await?);
        }
    }
    let mut rows = Vec::new();
    for filter in arguments.to_filters() {
        if arguments.revoke {
            changed += revoke_rights(&mut transaction, login, &filter).await?;
        } else {
            rows.extend(list_rights(&mut transaction, &filter).await?);
        }
    }
    transaction.commit().await?;
    if arguments.revoke {
        match arguments.output.is_for_programs() {
            true => output::print_json(SCHEMA, json!({ "changed": changed, "rights": [] }))?,
            false => output::print_note(&format!("{changed} rights were taken back")),
        }
        return Ok(if changed == 0 { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS });
    }
    let code = List { schema: SCHEMA, field: "rights", rows: &rows, none: "no right matches" }.print_with(
        arguments.output,
        times,
        json!({ "changed": changed }),
    )?;
    for warning in list_warnings(&rows) {
        output::print_note(&warning);
    }
    Ok(if is_grant { ExitCode::SUCCESS } else { code })
}

/// Describes the logins and memberships that are missing for the rights to take effect.
fn list_warnings(rows: &[RightRow]) -> Vec<String> {
    let mut warnings: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            let login = escape(&row.login);
            let role = match row.verb.as_str() {
                "emit" => "oncely_emitter",
                "read" => "oncely_tenant_auditor",
                _ => "oncely_consumer",
            };
            match (row.login_exists, row.has_role) {
                (false, _) => {
                    Some(format!("there is no login {login} any more: oncely grant {login} --revoke"))
                }
                (true, false) => {
                    let what = if row.verb == "read" { "read anything" } else { "call the functions" };
                    Some(format!("{login} may not {what} yet: grant {role} to {login}"))
                }
                (true, true) => None,
            }
        })
        .collect();
    warnings.dedup();
    warnings
}

impl Row for RightRow {
    const SCHEMA: &'static str = "oncely.grant.right/1";
    const HEADS: &'static [&'static str] = &["LOGIN", "MAY", "AS OR TO", "TENANT", "SINCE", "GRANTED BY"];

    fn cells(&self, times: Times) -> Vec<String> {
        let object = match (self.verb.as_str(), self.object.as_str()) {
            ("read", _) => String::new(),
            (_, "") => "'' (the default exchange)".to_owned(),
            (_, name) => name.to_owned(),
        };
        vec![
            self.login.clone(),
            self.verb.clone(),
            object,
            self.tenant.clone(),
            times.format_time(self.granted_at),
            self.granted_by.clone(),
        ]
    }
}
