//! `oncely tenant export|erase`: exports or erases a tenant's data; `usage|limit`: usage and limits of its stored dead letters, and the
//! retention of its keys.

mod erase;
mod export;
mod limit;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;

use super::output::{self, Times, escape};
use oncely_core::identity::IdentityPart;
use oncely_ops::exit;

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Export all rows of a tenant: keys, trail, dead letters, events; one object per line
    #[command(
        after_help = "Reads page by page, so that a row that is added or deleted meanwhile may be missing; the last \
                      line counts the rows. Contents of messages and responses are left out; --reveal includes them, \
                      except the fields that [console] mask names, and is recorded in oncely.operator_actions (role \
                      oncely_operator). Exit 1: the tenant has no rows."
    )]
    Export(export::TenantExportArguments),
    /// Erase a tenant: keys, trail, dead letters and their copies in queues, events, rights, mirror
    #[command(
        after_help = "Needs the owner of the schema: it deletes young keys and changes the trail. Stop all \
                      publishers of the tenant first. Keys within their retention are refused, since a late copy of \
                      their message would run again; --forget-keys accepts that. Messages in your own queues and in \
                      retry queues, and effects in your tables, are not erased. Prints a receipt, and records it \
                      under the pseudonym in oncely.operator_actions. Repeat it if it was interrupted. Exit 1: rows \
                      are left, which the receipt lists. 4: refused, or not confirmed."
    )]
    Erase(erase::TenantEraseArguments),
    /// Tenants with their stored dead letters, waiting events, the limits of both, and their retention; exit 1 if none exists
    Usage(limit::UsageArguments),
    /// Set limits of a tenant's stored dead letters and waiting events, or the retention of its keys
    #[command(
        after_help = "Messages beyond the limit are only in the dead-letter queue, and are requeued from there; \
                      their rows stay, without body and headers. If only one of --letters and --bytes is given, the \
                      other follows the configuration ([dead_letters] tenant_letters, tenant_bytes); --retention \
                      changes neither. --events and --event-bytes limit the events of logins that oncely.rights \
                      lists: beyond the limit they are refused (ONC22); events of workers are not. The one that is \
                      not given follows the database (oncely.cell). A key is kept as long as a copy of its message \
                      may come (redelivery_horizon) or a mirror entry may live (mirror.ttl): if --retention is \
                      shorter, the command prints how long keys are kept. The trail and closed dead letters follow \
                      audit.retention, for all tenants."
    )]
    Limit(limit::LimitArguments),
}

pub(super) async fn run(file: &Path, verb: TenantCommand, times: Times) -> crate::VerbResult {
    let tenant = match &verb {
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
        output::print_note(&format!("{:?} is no tenant: {error}", escape(tenant)));
        return Ok(ExitCode::from(exit::USAGE));
    }
    match verb {
        TenantCommand::Export(arguments) => export::run(file, arguments).await,
        TenantCommand::Erase(arguments) => erase::run(file, arguments, times).await,
        TenantCommand::Usage(arguments) => limit::print_usage(file, arguments, times).await,
        TenantCommand::Limit(arguments) => limit::set_limits(file, arguments).await,
    }
}
