//! `oncely audit verify`: compares the trail with its seals.

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use sqlx::PgConnection;

use super::connection::connect;
use super::output::{self, Times, format_age, format_count};
use oncely_ops::exit;
use oncely_postgres::{self as pg, Seal};
use oncely_relay::maintenance::format_hash;

#[derive(Debug, Args)]
#[command(
    after_help = "The relay seals the trail every hour: each seal holds the hash of the rows of a time span and of \
                  the previous seal. The owner of the database can forge rows and seals, but not a hash that was \
                  stored elsewhere: the relay logs each, and this command prints the last one. Exit 1: the trail was \
                  changed."
)]
pub(super) struct AuditVerifyArguments {
    /// Hash recorded earlier, which the chain must still contain
    #[arg(long)]
    anchor: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A difference between the trail and its seals.
#[derive(Debug, Serialize)]
struct SealMismatch {
    /// `None` if it does not concern a span.
    from: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    what: String,
}

/// Result of the verification.
#[derive(Debug, Default)]
struct TrailVerification {
    seals: u64,
    pub rows: i64,
    breaks: Vec<SealMismatch>,
    has_anchor: bool,
    last: Option<Seal>,
    sealed_until: Option<DateTime<Utc>>,
    first: Option<DateTime<Utc>>,
    dropped: pg::DroppedSpan,
    /// Spans from which a tenant was erased.
    erased: pg::ErasedSpans,
}

/// Seals per query.
const PAGE_SEALS: i64 = 500;

pub(super) async fn run(file: &Path, arguments: AuditVerifyArguments, times: Times) -> crate::VerbResult {
    let mut connection = connect(file, "oncely audit verify").await?;
    let anchor = arguments.anchor.as_deref().map(str::to_lowercase);
    let mut verification = verify(&mut connection, anchor.as_deref()).await?;
    if anchor.is_some() && !verification.has_anchor {
        let what = "the anchor is not in the chain: seals were forged or deleted".to_owned();
        verification.breaks.push(SealMismatch { from: None, until: None, what });
    }
    let unsealed = pg::count_audit(&mut connection, verification.sealed_until, None).await?;
    let last_hash = verification.last.as_ref().map(|seal| format_hash(&seal.hash));
    if arguments.json {
        output::print_json(
            "oncely.audit_verify/1",
            json!({
                "whole": verification.breaks.is_empty(), "breaks": verification.breaks, "seals": verification.seals,
                "rows": verification.rows, "hash": last_hash,
                "sealed_until": verification.sealed_until, "dropped_until": verification.dropped.until,
                "dropped_within_floor": verification.dropped.within_floor, "erased_spans": verification.erased.len(), "unsealed": unsealed,
            }),
        )?;
    } else {
        output::print(&describe(&verification, last_hash.as_deref(), unsealed, times))?;
    }
    Ok(if verification.breaks.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// Recomputes the chain of seals, page by page, and compares each with the rows that it covers. `anchor`: a hash to search in the chain.
async fn verify(
    connection: &mut PgConnection,
    anchor: Option<&str>,
) -> Result<TrailVerification, sqlx::Error> {
    pg::set_seal_formats(connection).await?;
    let dropped = pg::read_dropped_span(connection).await?;
    let mut verification = TrailVerification {
        dropped,
        erased: pg::read_erased_spans(connection).await?,
        ..TrailVerification::default()
    };
    let mut spans = HashSet::new();
    let mut last_place = 0;
    loop {
        let seals = pg::list_seals(connection, last_place, PAGE_SEALS).await?;
        if seals.is_empty() {
            break;
        }
        for seal in seals {
            last_place = seal.place;
            verification.seals += 1;
            verification.has_anchor |= anchor.is_some_and(|anchor| anchor == format_hash(&seal.hash));
            let mut what = check_seal(connection, &seal, &verification).await?;
            if seal.kind == "erased" && !spans.contains(&(seal.from_time, seal.until_time)) && what.is_none()
            {
                what = Some(format!(
                    "the seal {} says that rows were erased from a span that no seal covers",
                    seal.place
                ));
            }
            if let Some(what) = what {
                verification.breaks.push(SealMismatch {
                    from: Some(seal.from_time),
                    until: Some(seal.until_time),
                    what,
                });
            }
            if seal.kind == "rows" {
                spans.insert((seal.from_time, seal.until_time));
                verification.rows += seal.row_count;
                verification.sealed_until = verification.sealed_until.max(Some(seal.until_time));
                verification.first.get_or_insert(seal.from_time);
            }
            verification.last = Some(seal);
        }
    }
    // Rows that no seal covers: before the first seal, and where partitions were dropped.
    let until = verification.first.max(verification.dropped.until);
    if let Some(until) = until {
        let rows = pg::count_audit(connection, None, Some(until)).await?;
        if rows > 0 {
            let what = format!("{rows} rows that no seal covers: they were added later");
            verification.breaks.push(SealMismatch { from: None, until: Some(until), what });
        }
    }
    Ok(verification)
}

/// Checks a seal and the rows that it covers, and describes the first mismatch; `None` if both are unchanged.
async fn check_seal(
    connection: &mut PgConnection,
    seal: &Seal,
    verification: &TrailVerification,
) -> Result<Option<String>, sqlx::Error> {
    if !seal.is_whole {
        return Ok(Some(format!(
            "the seal {} was changed: its hash is not that of its contents",
            seal.place
        )));
    }
    if !seal.is_linked {
        return Ok(Some(format!("the seal {} does not follow the one before it", seal.place)));
    }
    if !seal.is_in_time {
        return Ok(Some(format!("the seal {} says that it was made before its span was over", seal.place)));
    }
    if !seal.is_past_floor {
        return Ok(Some(format!(
            "the seal {} says that rows were dropped that were younger than any audit_floor allows",
            seal.place
        )));
    }
    if seal.kind != "rows" || verification.dropped.until.is_some_and(|dropped| seal.until_time <= dropped) {
        return Ok(None);
    }
    // An erasure seals the remaining rows again, and the last seal of a span counts.
    let (sealed_rows, sealed_digest) = match verification.erased.get(&(seal.from_time, seal.until_time)) {
        Some((rows, digest)) => (*rows, digest),
        None => (seal.row_count, &seal.digest),
    };
    let (rows, digest) = pg::compute_audit_digest(connection, seal.from_time, seal.until_time).await?;
    Ok(match (rows - sealed_rows, digest == *sealed_digest) {
        (0, true) => None,
        (0, false) => Some(format!("rows were changed: the {rows} rows differ from the sealed ones")),
        (more, _) if more > 0 => Some(format!("{rows} rows instead of {sealed_rows}: some were added later")),
        _ => Some(format!("{rows} rows instead of {sealed_rows}: some were deleted")),
    })
}

/// Formats the result of the verification for a terminal.
fn describe(
    verification: &TrailVerification,
    last_hash: Option<&str>,
    unsealed: i64,
    times: Times,
) -> String {
    let mut lines: Vec<String> = Vec::new();
    for SealMismatch { from, until, what } in &verification.breaks {
        let span = match (from, until) {
            (Some(from), Some(until)) => {
                format!("{} to {}: ", times.format_time(*from), times.format_time(*until))
            }
            (None, Some(until)) => format!("before {}: ", times.format_time(*until)),
            _ => String::new(),
        };
        lines.push(format!("✗ {span}{what}"));
    }
    match (verification.sealed_until, last_hash) {
        (Some(until), Some(last_hash)) => {
            let mark = if verification.breaks.is_empty() { "✓" } else { "–" };
            lines.push(format!(
                "{mark} {} seals over {} rows, up to {}",
                verification.seals,
                verification.rows,
                times.format_time(until)
            ));
            match verification.dropped {
                pg::DroppedSpan { until: Some(until), within_floor: true } => lines.push(format!(
                    "! dropped up to {}, which is younger than oncely.cell.audit_floor: \
                     it was lower then, or the seal is forged",
                    times.format_time(until)
                )),
                pg::DroppedSpan { until: Some(until), .. } => {
                    lines
                        .push(format!("– dropped after audit.retention, up to {}", times.format_time(until)));
                }
                pg::DroppedSpan { until: None, .. } => {}
            }
            if !verification.erased.is_empty() {
                lines.push(format!(
                    "! tenants were erased from {}: each erasure has its receipt, and a row in oncely.operator_actions",
                    format_count(verification.erased.len(), "span")
                ));
            }
            lines.push(format!("– {unsealed} rows since then are not sealed yet"));
            let now = Utc::now();
            if now - until > chrono::Duration::days(1) {
                lines.push(format!("! nothing was sealed for {}: does a relay run?", format_age(until, now)));
            }
            lines.push(format!("the last hash, to be kept elsewhere (--anchor): {last_hash}"));
        }
        _ => lines.push(format!(
            "nothing is sealed yet ({unsealed} rows): the relay does it every hour, `oncely gc run` at once"
        )),
    }
    lines.join("\n")
}
