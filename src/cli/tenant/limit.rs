//! `oncely tenant usage` and `oncely tenant limit TENANT`: how much of a tenant's dead letters is stored, and may be.

use std::path::Path;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use serde_json::json;

use super::super::output::{self, List, Output, Row, Times, bytes, safe};
use super::super::{consent, session};
use crate::config::Config;
use crate::pg::{self, TenantUsage};

const USAGE: &str = "oncely.tenant_usage/1";
const LIMIT: &str = "oncely.tenant_limit/1";

#[derive(Debug, Args)]
pub(super) struct UsageArguments {
    /// Most tenants that are listed
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args(["letters", "bytes", "default"]))]
pub(super) struct LimitArguments {
    /// The tenant; '' for messages without a valid one
    pub(super) tenant: String,
    /// Of so many dead letters the message may be stored
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    letters: Option<i64>,
    /// So many bytes of their bodies and headers may be stored
    #[arg(long, value_parser = clap::value_parser!(i64).range(0..))]
    bytes: Option<i64>,
    /// What the configuration says counts again
    #[arg(long, conflicts_with_all = ["letters", "bytes"])]
    default: bool,
    /// Why, for the record
    #[arg(long)]
    note: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

impl Row for TenantUsage {
    const SCHEMA: &'static str = "oncely.tenant_usage.tenant/1";
    const HEADS: &'static [&'static str] =
        &["TENANT", "LETTERS", "OF", "BYTES", "OF", "NOT STORED", "LIMITS"];

    fn cells(&self, _: Times) -> Vec<String> {
        vec![
            self.tenant.clone(),
            self.letters.to_string(),
            self.most_letters.to_string(),
            bytes(self.bytes),
            bytes(self.most_bytes),
            self.left_out.to_string(),
            if self.own_limit { "its own" } else { "of all" }.to_owned(),
        ]
    }
}

pub(super) async fn usage(file: &Path, arguments: UsageArguments, times: Times) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let quota = config.dead_letters.quota();
    let found = pg::tenant_usages(&mut session.connection, quota, arguments.limit).await?;
    session.close().await;
    let none = "no message of a dead letter is stored, and no tenant has limits of its own";
    List { schema: USAGE, field: "tenants", rows: &found, none }.print(arguments.output, times)
}

pub(super) async fn limit(file: &Path, arguments: LimitArguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let LimitArguments { tenant, letters, bytes: most, note, json, .. } = arguments;
    let (user, note) = (consent::user(), note.as_deref());
    pg::limit_tenant(&mut session.connection, &tenant, (letters, most), &user, note).await?;
    session.close().await;
    if json {
        output::print_json(LIMIT, json!({ "tenant": tenant, "letters": letters, "bytes": most }))?;
    }
    let quota = config.dead_letters.quota();
    output::note(&format!(
        "of the tenant {} up to {} dead letters are stored with their message, and up to {}",
        safe(&tenant),
        letters.unwrap_or(quota.letters),
        bytes(most.unwrap_or(quota.bytes))
    ));
    Ok(ExitCode::SUCCESS)
}
