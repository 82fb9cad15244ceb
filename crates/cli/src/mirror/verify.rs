//! `oncely mirror verify`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use chrono::TimeDelta;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::super::output::{self, escape};
use super::{SCHEMA, report_no_mirror};
use oncely_config::Config;
use oncely_mirror::{Mirror, MirrorEntry, Tag, read_tag_keys};
use oncely_ops::exit;
use oncely_postgres as pg;
use oncely_process::preflight::open_session;

#[derive(Debug, Args)]
pub(crate) struct MirrorVerifyArguments {
    /// Maximum number of keys that are sampled per consumer
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(20..=100_000))]
    sample: i64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Results of a consumer's sample.
#[derive(Debug, Serialize)]
struct MirrorVerification {
    consumer: String,
    looked_for: usize,
    missing: usize,
    foreign: usize,
}

pub(super) async fn run(file: &Path, arguments: MirrorVerifyArguments) -> crate::VerbResult {
    let config = Config::load(file)?;
    let Some(settings) = &config.mirror else { return Ok(report_no_mirror()) };
    let mut session = open_session(&config).await?;
    let (key, _) = read_tag_keys(&config, &mut session.connection)
        .await
        .context("reading the key that tags are made with (role oncely_operator, or mirror.key)")?;
    let mirror = Mirror::new(settings)?;
    let now = session.clock.now();
    let ttl = TimeDelta::from_std(settings.ttl)?;
    let span = (now - ttl / 2, now);
    let mut results = Vec::new();
    for consumer in config.mirrored_consumers() {
        let sample_size = (arguments.sample / 20).max(1);
        let sample =
            pg::sample_mirrored_keys(&mut session.connection, &consumer, span, now + ttl, sample_size)
                .await?;
        let tags: Vec<Tag> = sample
            .iter()
            .map(|one| key.tag(&session.cell.epoch, &one.identity, one.fingerprint.as_ref()))
            .collect();
        let entries = mirror.examine_entries(&key, &tags, now).await?;
        let count = |what: MirrorEntry| entries.iter().filter(|entry| **entry == what).count();
        let (missing, foreign) = (count(MirrorEntry::Missing), count(MirrorEntry::Foreign));
        results.push(MirrorVerification { consumer, looked_for: tags.len(), missing, foreign });
    }
    session.close().await;
    if arguments.json {
        output::print_json(SCHEMA, json!({ "consumers": results }))?;
    } else {
        let mut table = output::new_table(&["CONSUMER", "LOOKED FOR", "MISSING", "FOREIGN"]);
        for one in &results {
            table.add_row([
                escape(&one.consumer),
                one.looked_for.to_string(),
                one.missing.to_string(),
                one.foreign.to_string(),
            ]);
        }
        output::print(&table.to_string())?;
    }
    let has_bad_entries = results.iter().any(|one| one.missing + one.foreign > 0);
    if has_bad_entries {
        output::print_note(
            "PostgreSQL answers for missing keys: correct, only slower; `oncely mirror rebuild` writes them again",
        );
    }
    Ok(if has_bad_entries { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}
