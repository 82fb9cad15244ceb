//! `oncely tenant erase TENANT`.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::super::output::{self, Times, escape, format_count};
use super::super::{confirmation, operator};
use oncely_amqp::Topology;
use oncely_config::Config;
use oncely_ops::erasure::{Erasure, Receipt};
use oncely_ops::exit;
use oncely_postgres::{self as pg, TenantCounts};
use oncely_process::preflight::open_session;

const SCHEMA: &str = "oncely.tenant_erase/1";

#[derive(Debug, Args)]
pub(crate) struct TenantEraseArguments {
    /// Tenant to erase
    pub(super) tenant: String,
    /// Treatment of its rows in the trail
    #[arg(long, value_enum, default_value_t = TrailErasure::Pseudonym)]
    trail: TrailErasure,
    /// Also delete keys within their retention: copies of their messages that still arrive run again
    #[arg(long)]
    forget_keys: bool,
    /// Only show the plan
    #[arg(long)]
    dry_run: bool,
    /// Confirm the plan without a prompt
    #[arg(long)]
    yes: bool,
    /// Reason, recorded with the action; the tenant's name in it is replaced
    #[arg(long)]
    note: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TrailErasure {
    /// Keep them under a random name, with hashed keys and without details
    Pseudonym,
    /// Delete them
    Delete,
}

pub(super) async fn run(file: &Path, arguments: TenantEraseArguments, times: Times) -> crate::VerbResult {
    let tenant = arguments.tenant.as_str();
    let config = Config::load(file)?;
    let mut session = open_session(&config).await?;
    let privileges = pg::read_login_privileges(&mut session.connection).await?;
    if !privileges.owner {
        output::print_note(&format!(
            "the login {} may not erase: it deletes young keys and changes the trail, so it takes the owner of the schema oncely, with whose \
             login you migrate (DATABASE_URL)",
            escape(&privileges.login)
        ));
        return Ok(ExitCode::from(exit::REFUSED));
    }
    pg::remove_statement_timeout(&mut session.connection).await?;
    let now = session.clock.now();
    let counts = pg::count_tenant_rows(&mut session.connection, tenant, now).await?;
    let refusal = describe_refusal(&counts, &arguments, times);
    if arguments.json && (arguments.dry_run || refusal.is_some()) {
        output::print_json(
            SCHEMA,
            json!({ "dry_run": true, "tenant": tenant, "found": counts, "refused": refusal }),
        )?;
    }
    if !arguments.json || !arguments.yes {
        output::print_note(&describe_plan(&counts, &arguments));
    }
    if let Some(why) = &refusal {
        output::print_note(why);
        return Ok(ExitCode::from(exit::REFUSED));
    }
    if arguments.dry_run {
        output::print_note("dry run: nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    if !confirmation::ask_confirmation(arguments.yes, tenant)? {
        return Ok(ExitCode::from(exit::REFUSED));
    }
    let erasure = Erasure {
        tenant,
        deletes_trail: arguments.trail == TrailErasure::Delete,
        forgets_keys: arguments.forget_keys,
        user: &operator::name(),
        note: arguments.note.as_deref(),
    };
    let receipt = erasure.run(&config, &mut session).await?;
    session.close().await;
    if arguments.json {
        output::print_json(
            SCHEMA,
            json!({ "dry_run": false, "tenant": tenant, "receipt": receipt, "complete": receipt.is_complete() }),
        )?;
    } else {
        output::print(&format_receipt(&receipt, tenant, times))?;
    }
    describe_remarks(&receipt).iter().for_each(|line| output::print_note(line));
    Ok(if receipt.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Describes why the erasure is refused; `None` if it is not. It is refused if keys are within their retention and `--forget-keys` is not
/// given: a late copy of such a message would run again.
fn describe_refusal(counts: &TenantCounts, arguments: &TenantEraseArguments, times: Times) -> Option<String> {
    (counts.young_keys > 0 && !arguments.forget_keys).then(|| {
        let until = match counts.young_until {
            Some(until) => format!("; the last one is at {}, pauses left out", times.format_time(until)),
            None => String::new(),
        };
        format!(
            "refused: {} not past their retention yet{until}. A copy of such a message that still comes would run again. Wait until then, or \
             accept it with --forget-keys where nothing of this tenant comes any more",
            format_count_phrase(counts.young_keys, "key")
        )
    })
}

/// Formats a count with its noun and "is" or "are".
fn format_count_phrase(count: i64, noun: &str) -> String {
    format!("{} {}", format_count(count, noun), if count == 1 { "is" } else { "are" })
}

/// Describes the rows that an erasure will delete.
fn describe_plan(counts: &TenantCounts, arguments: &TenantEraseArguments) -> String {
    let TenantCounts { keys, young_keys, trail, letters, open_letters, events, rights, actions, .. } = counts;
    let trail_action = match arguments.trail {
        TrailErasure::Pseudonym => "get a pseudonym",
        TrailErasure::Delete => "are deleted",
    };
    [
        format!("erase the tenant {}", escape(&arguments.tenant)),
        format!("  {keys:>8}  keys, {young_keys} of them not past their retention, and their tags in Redis"),
        format!("  {trail:>8}  rows of the trail, which {trail_action}"),
        format!("  {letters:>8}  dead letters, {open_letters} of them open, and their copies in dead-letter queues"),
        format!("  {events:>8}  events, which are never published then"),
        format!("  {rights:>8}  rights of logins to it"),
        format!("  {actions:>8}  actions of people that name it, which get the pseudonym"),
        "not erased: what waits in your own queues and in retry queues, and what its messages wrote in your tables".to_owned(),
    ]
    .join("\n")
}

/// Formats the receipt of an erasure for a terminal.
fn format_receipt(receipt: &Receipt, tenant: &str, times: Times) -> String {
    let trail = if receipt.trail_deleted { "deleted" } else { "under the pseudonym" };
    let mut table = output::new_table(&["WHAT", "HOW MANY"]);
    for (what, count) in [
        ("keys", receipt.keys.to_string()),
        ("entries in Redis", receipt.mirror_entries.to_string()),
        ("mirror records", receipt.mirror_records.to_string()),
        ("rows of the trail", format!("{} {trail}", receipt.trail)),
        ("dead letters", receipt.letters.to_string()),
        ("copies in dead-letter queues", receipt.copies.to_string()),
        ("events", receipt.events.to_string()),
        ("ordering keys", receipt.ordering_keys.to_string()),
        ("rights", receipt.rights.to_string()),
        ("limits and counts", receipt.limits.to_string()),
        ("actions that named it", receipt.actions.to_string()),
        ("left", receipt.left.total().to_string()),
    ] {
        table.add_row([what.to_owned(), count]);
    }
    format!(
        "erased {} at {} by {}\nits pseudonym is {}: keep it with your papers, nothing else leads from one to the other\n{table}",
        escape(tenant),
        times.format_time(receipt.erased_at),
        escape(&receipt.login),
        receipt.pseudonym
    )
}

/// Describes the tasks that remain after an erasure, and further facts.
fn describe_remarks(receipt: &Receipt) -> Vec<String> {
    let mut lines = Vec::new();
    let left = &receipt.left;
    if left.total() - left.processes > 0 {
        lines.push(format!(
            "! {} of it came or stayed meanwhile: stop all its publishers, and erase it again",
            format_count(left.total() - left.processes, "row")
        ));
    }
    if left.keys > 0 {
        lines.push(
            "! a key that a run holds by a lease stays until the lease is over: oncely leases list --tenant says which"
                .to_owned(),
        );
    }
    if left.processes > 0 {
        lines.push(format!(
            "! {} of workers that run tell of a failure of one of its messages: restart them, and erase it again",
            format_count(left.processes, "heartbeat")
        ));
    }
    if receipt.unproven_copies > 0 {
        lines.push(format!(
            "! {} in dead-letter queues name it in a header without a mark that this configuration can read (known_keys): look at them by hand",
            format_count(receipt.unproven_copies, "message")
        ));
    }
    if receipt.broken_spans > 0 {
        lines.push(format!(
            "! {} of the trail were not as they had been sealed before: `oncely audit verify` goes on reporting them",
            format_count(receipt.broken_spans, "span")
        ));
    }
    for queue in &receipt.missing_queues {
        lines.push(format!("– {} is not there", escape(&Topology::dead_letter_queue(queue))));
    }
    lines
}
