//! `oncely tenant export|erase`: all that there is of a tenant; `usage|limit`: how much of its dead letters is stored, and how
//! long its keys are remembered.

mod erase;
mod export;
mod limit;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{self, Times, safe};
use crate::exit;
use crate::identity::IdentityPart;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// All rows of a tenant: keys, trail, dead letters, events; an object a line
    #[command(
        after_help = "Page by page, so that a row that comes or goes meanwhile may be missing; the last line counts the rows. What messages and \
                      responses hold is left out; with --reveal it is there, but for what [console] mask names, and that somebody looked is \
                      recorded in oncely.operator_actions (role oncely_operator). Exit 1: there is nothing of this tenant."
    )]
    Export(export::Arguments),
    /// Erase a tenant: keys, trail, dead letters and their copies in queues, events, rights, mirror
    #[command(
        after_help = "For the owner of the schema: it deletes keys that are young, and changes the trail. Stop whoever publishes for the tenant \
                      first. Keys that are not past their retention are refused, since a copy of their message that still comes would run again; \
                      --forget-keys accepts that. What waits in your own queues and in retry queues, and the effects of messages in your tables, \
                      are yours. Prints a receipt, and records it under the pseudonym in oncely.operator_actions. Repeat it where it was broken \
                      off. Exit 1: something is left, which the receipt lists. 4: refused, or nobody agreed."
    )]
    Erase(erase::Arguments),
    /// How much of each tenant's dead letters is stored, how many events wait, what of both may be, and how long its keys are remembered; exit 1 where there is none
    Usage(limit::UsageArguments),
    /// Set how much of a tenant's dead letters may be stored, how many events may wait, or how long its keys are remembered
    #[command(
        after_help = "What does not fit is in the dead-letter queue alone, and is requeued from there; its row stays, without body and headers. \
                      Of --letters and --bytes, the one that is left out is as the configuration says ([dead_letters] tenant_letters, \
                      tenant_bytes); --retention changes neither. --events and --event-bytes are for what logins emit that \
                      oncely.rights lists: over it they are refused (ONC22), and workers are not; the one that is left out is as the \
                      database says (oncely.cell). No key goes before a copy of its message could still come \
                      (redelivery_horizon), or while a mirror entry may live (mirror.ttl): where --retention is shorter, it says for how long \
                      keys are kept all the same. The trail and closed dead letters go by audit.retention, whoever's they are."
    )]
    Limit(limit::LimitArguments),
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let tenant = match &arguments.verb {
        Verb::Export(export::Arguments { tenant, .. }) | Verb::Erase(erase::Arguments { tenant, .. }) => {
            Some(tenant)
        }
        // Letters without a valid tenant have the empty one.
        Verb::Limit(limit::LimitArguments { tenant, .. }) => Some(tenant).filter(|name| !name.is_empty()),
        Verb::Usage(_) => None,
    };
    // What can't be a tenant's name is a slip.
    if let Some(tenant) = tenant
        && let Err(error) = IdentityPart::new(tenant.as_bytes())
    {
        output::note(&format!("{:?} is no tenant: {error}", safe(tenant)));
        return Ok(ExitCode::from(exit::USAGE));
    }
    match arguments.verb {
        Verb::Export(arguments) => export::run(file, arguments).await,
        Verb::Erase(arguments) => erase::run(file, arguments, times).await,
        Verb::Usage(arguments) => limit::usage(file, arguments, times).await,
        Verb::Limit(arguments) => limit::limit(file, arguments).await,
    }
}
