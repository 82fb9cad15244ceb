//! `oncely mirror stats`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::super::output::{self, Times, format_age};
use super::{SCHEMA, report_no_mirror};
use oncely_config::Config;
use oncely_mirror::Mirror;
use oncely_ops::exit;
use oncely_ops::overview::Overview;
use oncely_postgres as pg;
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
pub(crate) struct MirrorStatsArguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(file: &Path, arguments: MirrorStatsArguments, times: Times) -> crate::VerbResult {
    let config = Config::load(file)?;
    let Some(settings) = &config.mirror else { return Ok(report_no_mirror()) };
    let mut session = open_session(&config).await?;
    let now = session.clock.now();
    let queue = pg::read_mirror_queue_status(&mut session.connection).await?;
    let overview = Overview::read(&mut session.connection, None, now).await?;
    session.close().await;
    let ping = match Mirror::new(settings) {
        Ok(mirror) => mirror.ping().await,
        Err(error) => Err(error),
    };
    let error = ping.err().map(|error| error.to_string());
    let target = overview.targets.iter().find(|target| target.target == "redis");
    let (relayed, failed) = target.map_or((0, 0), |target| (target.relayed, target.failed));
    if arguments.json {
        output::print_json(
            SCHEMA,
            json!({
                "reachable": error.is_none(), "error": error, "records": queue.records, "oldest": queue.oldest, "relayed": relayed,
                "failed": failed, "ttl": settings.ttl.as_secs_f64(),
            }),
        )?;
    } else {
        let redis = match &error {
            None => format!("✓ Redis        {}", settings.redacted()),
            Some(error) => format!("✗ Redis        {}: {}", settings.redacted(), output::escape(error)),
        };
        let oldest = queue
            .oldest
            .map(|at| format!(", the oldest for {} ({})", format_age(at, now), times.format_time(at)));
        let waiting = format!("{} records wait{}", queue.records, oldest.unwrap_or_default());
        output::print(&format!(
            "{redis}\n  queue        {waiting}\n  last minute  {relayed} relayed, {failed} failed"
        ))?;
    }
    Ok(if error.is_none() { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}
