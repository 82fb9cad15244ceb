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
use super::output::{self, Times, age, counted};
use oncely_ops::exit;
use oncely_postgres::{self as pg, Seal};
use oncely_relay::maintenance::hexadecimal;

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
const PAGE: i64 = 500;

pub(super) async fn run(file: &Path, arguments: AuditVerifyArguments, times: Times) -> crate::VerbResult {
    let mut connection = connect(file, "oncely audit verify").await?;
    let anchor = arguments.anchor.as_deref().map(str::to_lowercase);
    let mut found = verify(&mut connection, anchor.as_deref()).await?;
    if anchor.is_some() && !found.has_anchor {
        let what = "the anchor is not in the chain: seals were forged or deleted".to_owned();
        found.breaks.push(SealMismatch { from: None, until: None, what });
    }
    let unsealed = pg::audit_count(&mut connection, found.sealed_until, None).await?;
    let head = found.last.as_ref().map(|seal| hexadecimal(&seal.hash));
    if arguments.json {
        output::print_json(
            "oncely.audit_verify/1",
            json!({
                "whole": found.breaks.is_empty(), "breaks": found.breaks, "seals": found.seals, "rows": found.rows, "hash": head,
                "sealed_until": found.sealed_until, "dropped_until": found.dropped.until,
                "dropped_within_floor": found.dropped.within_floor, "erased_spans": found.erased.len(), "unsealed": unsealed,
            }),
        )?;
    } else {
        output::print(&describe(&found, head.as_deref(), unsealed, times))?;
    }
    Ok(if found.breaks.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

async fn verify(
    connection: &mut PgConnection,
    anchor: Option<&str>,
) -> Result<TrailVerification, sqlx::Error> {
    pg::look_as_sealed(connection).await?;
    let dropped = pg::dropped(connection).await?;
    let mut found = TrailVerification {
        dropped,
        erased: pg::erased_spans(connection).await?,
        ..TrailVerification::default()
    };
    let mut spans = HashSet::new();
    let mut place = 0;
    loop {
        let seals = pg::seals(connection, place, PAGE).await?;
        if seals.is_empty() {
            break;
        }
        for seal in seals {
            place = seal.place;
            found.seals += 1;
            found.has_anchor |= anchor.is_some_and(|anchor| anchor == hexadecimal(&seal.hash));
            let mut what = wrong(connection, &seal, &found).await?;
            if seal.kind == "erased" && !spans.contains(&(seal.from_time, seal.until_time)) && what.is_none()
            {
                what = Some(format!(
                    "the seal {} says that rows were erased from a span that no seal covers",
                    seal.place
                ));
            }
            if let Some(what) = what {
                found.breaks.push(SealMismatch {
                    from: Some(seal.from_time),
                    until: Some(seal.until_time),
                    what,
                });
            }
            if seal.kind == "rows" {
                spans.insert((seal.from_time, seal.until_time));
                found.rows += seal.row_count;
                found.sealed_until = found.sealed_until.max(Some(seal.until_time));
                found.first.get_or_insert(seal.from_time);
            }
            found.last = Some(seal);
        }
    }
    // Rows that no seal covers: before the first seal, and where partitions were dropped.
    let until = found.first.max(found.dropped.until);
    if let Some(until) = until {
        let rows = pg::audit_count(connection, None, Some(until)).await?;
        if rows > 0 {
            let what = format!("{rows} rows that no seal covers: they were added later");
            found.breaks.push(SealMismatch { from: None, until: Some(until), what });
        }
    }
    Ok(found)
}

/// Returns the fault of a seal or of the rows that it covers, if any.
async fn wrong(
    connection: &mut PgConnection,
    seal: &Seal,
    all: &TrailVerification,
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
    if seal.kind != "rows" || all.dropped.until.is_some_and(|dropped| seal.until_time <= dropped) {
        return Ok(None);
    }
    // An erasure seals the remaining rows again, and the last seal of a span counts.
    let (sealed_rows, sealed_digest) = match all.erased.get(&(seal.from_time, seal.until_time)) {
        Some((rows, digest)) => (*rows, digest),
        None => (seal.row_count, &seal.digest),
    };
    let (rows, digest) = pg::audit_digest(connection, seal.from_time, seal.until_time).await?;
    Ok(match (rows - sealed_rows, digest == *sealed_digest) {
        (0, true) => None,
        (0, false) => Some(format!("rows were changed: the {rows} rows differ from the sealed ones")),
        (more, _) if more > 0 => Some(format!("{rows} rows instead of {sealed_rows}: some were added later")),
        _ => Some(format!("{rows} rows instead of {sealed_rows}: some were deleted")),
    })
}

fn describe(found: &TrailVerification, head: Option<&str>, unsealed: i64, times: Times) -> String {
    let mut lines: Vec<String> = Vec::new();
    for SealMismatch { from, until, what } in &found.breaks {
        let span = match (from, until) {
            (Some(from), Some(until)) => format!("{} to {}: ", times.show(*from), times.show(*until)),
            (None, Some(until)) => format!("before {}: ", times.show(*until)),
            _ => String::new(),
        };
        lines.push(format!("✗ {span}{what}"));
    }
    match (found.sealed_until, head) {
        (Some(until), Some(head)) => {
            let mark = if found.breaks.is_empty() { "✓" } else { "–" };
            lines.push(format!(
                "{mark} {} seals over {} rows, up to {}",
                found.seals,
                found.rows,
                times.show(until)
            ));
            match found.dropped {
                pg::DroppedSpan { until: Some(until), within_floor: true } => lines.push(format!(
                    "! dropped up to {}, which is younger than oncely.cell.audit_floor: \
                     it was lower then, or the seal is forged",
                    times.show(until)
                )),
                pg::DroppedSpan { until: Some(until), .. } => {
                    lines.push(format!("– dropped after audit.retention, up to {}", times.show(until)));
                }
                pg::DroppedSpan { until: None, .. } => {}
            }
            if !found.erased.is_empty() {
                lines.push(format!(
                    "! tenants were erased from {}: each erasure has its receipt, and a row in oncely.operator_actions",
                    counted(found.erased.len(), "span")
                ));
            }
            lines.push(format!("– {unsealed} rows since then are not sealed yet"));
            let now = Utc::now();
            if now - until > chrono::Duration::days(1) {
                lines.push(format!("! nothing was sealed for {}: does a relay run?", age(until, now)));
            }
            lines.push(format!("the last hash, to be kept elsewhere (--anchor): {head}"));
        }
        _ => lines.push(format!(
            "nothing is sealed yet ({unsealed} rows): the relay does it every hour, `oncely gc run` at once"
        )),
    }
    lines.join("\n")
}
