//! The part of a configuration that a gateway reads.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;
use url::Url;

use super::digest::compute_digest;
use super::gateway::GatewaySettings;
use super::merged::MergedValues;
use super::problems::Problems;
use super::read::read;
use super::schema;
use super::tasks::{LogSettings, WorkerSettings};
use oncely_postgres::PgSettings;

/// The part of a configuration that the gateway reads.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    #[doc(hidden)]
    pub digest: String,
    #[doc(hidden)]
    pub cell: String,
    #[doc(hidden)]
    pub postgres: PgSettings,
    #[doc(hidden)]
    pub worker: WorkerSettings,
    #[doc(hidden)]
    pub log: LogSettings,
    #[doc(hidden)]
    pub gateway: GatewaySettings,
    /// Origin of the service.
    #[doc(hidden)]
    pub upstream: Url,
}

/// Reads a gateway's settings from `file`, which may be missing, and the environment. The command line takes precedence over both. Tables
/// of other processes may have problems.
///
/// # Errors
/// If `file` can't be read, or a table of the gateway is invalid: all problems at once.
pub fn load(
    file: &Path,
    upstream: Option<&str>,
    listen: Option<SocketAddr>,
) -> Result<GatewayConfig, Problems> {
    let mut problems = Problems::default();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            problems.add(file.display().to_string(), format!("cannot be read ({error})"));
            return Err(problems);
        }
    };
    let mut merged = match MergedValues::read(&text, true) {
        Ok(merged) => merged,
        Err(error) => {
            problems.add(file.display().to_string(), error);
            return Err(problems);
        }
    };
    let options = [("upstream", upstream.map(str::to_owned)), ("listen", listen.map(|at| at.to_string()))];
    for (key, value) in options {
        let Some(value) = value else { continue };
        merged.set(&format!("gateway.{key}"), &format!("--{key}"), Value::from(value));
    }
    match check_gateway_settings(merged, &mut problems) {
        Some(config) => problems.into_result(config),
        None => Err(problems),
    }
}

/// Names of the tables that a gateway reads. It signs nothing: the keys of `[cell]` are not checked.
const GATEWAY_TABLES: [&str; 5] = ["cell", "postgres", "worker", "log", "gateway"];

/// Checks the settings that a gateway reads, and leaves the others unread. `None` without the service's origin.
fn check_gateway_settings(mut merged: MergedValues, problems: &mut Problems) -> Option<GatewayConfig> {
    let digest = compute_digest(&merged.values);
    let table_names = schema::names(schema::schema()).unwrap_or_default();
    merged
        .values
        .retain(|name, _| GATEWAY_TABLES.contains(&name.as_str()) || !table_names.contains(&name.as_str()));
    let file = read(&merged.values, problems);
    let postgres = file.postgres.into_settings(problems);
    let worker = file.worker.into_settings(problems);
    let log = file.log.into_settings(problems);
    let gateway = file.gateway.into_settings(problems);
    // No default: without the header that distinguishes clients, one of them could get another's answer.
    let is_valid = problems.is_empty();
    if gateway.principal.is_none() && is_valid {
        problems.add(
            "gateway.principal",
            "is missing: name the headers that identify the sender, such as [\"authorization\"], [\"cookie\"] or \
             [\"x-api-key\"]: the same key with other values is refused. [] if all clients of a tenant may get each \
             other's answers",
        );
    }
    if gateway.upstream.is_none() && is_valid {
        problems.add(
            "gateway.upstream",
            "is missing: set it here or with --upstream, like http://127.0.0.1:8080",
        );
    }
    let upstream = gateway.upstream.clone()?;
    Some(GatewayConfig { digest, cell: file.cell.name, postgres, worker, log, gateway, upstream })
}
