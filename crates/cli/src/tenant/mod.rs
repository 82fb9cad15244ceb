//! `oncely tenant export|erase`: exports or erases a tenant's data; `usage|limit`: usage and limits of its stored dead letters, and the
//! retention of its keys.

mod erase;
mod export;
mod limit;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{self, Times, safe};
use oncely_core::identity::IdentityPart;
use oncely_ops::exit;

#[derive(Debug, Args)]
pub(super) struct TenantArguments {
    #[command(subcommand)]
    verb: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// Export all rows of a tenant: keys, trail, dead letters, events; one object per line
    #[command(
        after_help = "Page by page, so that a row that comes or goes meanwhile may be missing; the last line counts the rows. What messages and \
                      responses hold is left out; with --reveal it is there, but for what [console] mask names, and that somebody looked is \
                      recorded in oncely.operator_actions (role oncely_operator). Exit 1: there is nothing of this tenant."
    )]
    Export(export::TenantExportArguments),
    /// Erase a tenant: keys, trail, dead letters and their copies in queues, events, rights, mirror
    #[command(
        after_help = "For the owner of the schema: it deletes keys that are young, and changes the trail. Stop whoever publishes for the tenant \
                      first. Keys that are not past their retention are refused, since a copy of their message that still comes would run again; \
                      --forget-keys accepts that. What waits in your own queues and in retry queues, and the effects of messages in your tables, \
                      are yours. Prints a receipt, and records it under the pseudonym in oncely.operator_actions. Repeat it where it was broken \
                      off. Exit 1: something is left, which the receipt lists. 4: refused, or nobody agreed."
    )]
    Erase(erase::TenantEraseArguments),
    /// Tenants with their stored dead letters, waiting events, the limits of both, and their retention; exit 1 if none exists
    Usage(limit::UsageArguments),
    /// Set limits of a tenant's stored dead letters and waiting events, or the retention of its keys
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

pub(super) async fn run(file: &Path, arguments: TenantArguments, times: Times) -> anyhow::Result<ExitCode> {
    let tenant = match &arguments.verb {
        TenantCommand::Export(export::TenantExportArguments { tenant, .. })
        | TenantCommand::Erase(erase::TenantEraseArguments { tenant, .. }) => Some(tenant),
        // The tenant is empty for letters without a valid one.
        TenantCommand::Limit(limit::LimitArguments { tenant, .. }) => {
            Some(tenant).filter(|name| !name.is_empty())
        }
        TenantCommand::Usage(_) => None,
    };
    // An invalid tenant name is a typing error.
    if let Some(tenant) = tenant
        && let Err(error) = IdentityPart::new(tenant.as_bytes())
    {
        output::note(&format!("{:?} is no tenant: {error}", safe(tenant)));
        return Ok(ExitCode::from(exit::USAGE));
    }
    match arguments.verb {
        TenantCommand::Export(arguments) => export::run(file, arguments).await,
        TenantCommand::Erase(arguments) => erase::run(file, arguments, times).await,
        TenantCommand::Usage(arguments) => limit::usage(file, arguments, times).await,
        TenantCommand::Limit(arguments) => limit::limit(file, arguments).await,
    }
}
