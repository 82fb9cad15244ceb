//! Checks whether identities are distinct: `data.identity`.

use std::time::Duration;

use chrono::TimeDelta;

use super::check_session::{CheckSession, query_or_skip};
use super::limits::Limits;
use oncely_postgres::{self as pg, IdentitySample};
use oncely_process::preflight::CheckFindings;

const CHECK: &str = "data.identity";
const HOUR: Duration = Duration::from_secs(3_600);

/// Checks the identities of the last hour, and the share of duplicates among its deliveries.
pub(super) async fn run_checks(limits: &Limits, session: &mut CheckSession<'_>) {
    let Some(clock) = query_or_skip!(session, CHECK, pg::read_clock) else { return };
    let since = clock.database - TimeDelta::hours(1);
    if let Some(samples) = query_or_skip!(session, CHECK, pg::sample_identities, since) {
        session
            .findings
            .add_read(CHECK, format!("decisions of {} consumers in the last hour", samples.len()));
        for sample in samples {
            check_identities(&sample, limits, session.findings);
        }
    }
    if let Some(stats) = query_or_skip!(session, CHECK, pg::read_consumer_stats, since, HOUR * 2) {
        let mut sums = std::collections::BTreeMap::new();
        for span in stats {
            let sum: &mut (i64, i64) = sums.entry(span.consumer).or_default();
            sum.0 += span.delivered;
            sum.1 += span.duplicates;
        }
        for (consumer, (delivered, duplicates)) in sums {
            session.findings.add_read(
                CHECK,
                format!("{consumer}: {duplicates} of {delivered} deliveries were duplicates"),
            );
            if delivered >= limits.decisions && duplicates * 5 >= delivered * 2 {
                let text = format!(
                    "{} of its deliveries of the last hour were duplicates: does a publisher send everything twice, or give different \
                     messages one key?",
                    format_percent(duplicates, delivered)
                );
                session.findings.add_warning(CHECK, format!("consumers.{consumer}.key"), text);
            }
        }
    }
}

/// Checks the identities of a consumer's decisions of the last hour: missing keys, shared keys, keys that are times.
fn check_identities(sample: &IdentitySample, limits: &Limits, findings: &mut CheckFindings) {
    let IdentitySample { consumer, decisions, without, conflicts, times, longest } = sample;
    findings.add_read(
        CHECK,
        format!(
            "{consumer}: of {decisions} decisions {without} without a valid tenant or key, {conflicts} of keys with another payload, \
             {times} of keys that read as times; the longest key has {longest} bytes"
        ),
    );
    if *decisions < limits.decisions {
        return;
    }
    let setting = |text: &str| format!("consumers.{consumer}.{text}");
    let of = |count: &i64| format_percent(*count, *decisions);
    if without * 20 >= *decisions {
        let text = format!(
            "{} of the last hour's messages came without a valid tenant or key: they are dead letters",
            of(without)
        );
        findings.add_warning(CHECK, setting("key"), text);
    }
    if conflicts * 20 >= *decisions {
        let text = format!(
            "{} of the last hour's decisions were refused because the key came with another payload: different messages share keys, \
             or the payload changes from copy to copy (see fingerprint)",
            of(conflicts)
        );
        findings.add_warning(CHECK, setting("key"), text);
    }
    if times * 2 >= *decisions {
        let text = format!(
            "{} of the last hour's keys read as times: two messages of one moment would be taken for one, and a message that is \
             published again gets a new key",
            of(times)
        );
        findings.add_warning(CHECK, setting("key"), text);
    }
}

fn format_percent(part: i64, total: i64) -> String {
    format!("{} %", part.saturating_mul(100) / total.max(1))
}
