//! Checks whether identities are distinct: `data.identity`.

use std::time::Duration;

use chrono::TimeDelta;

use super::check_session::{CheckSession, ask};
use super::limits::Limits;
use oncely_postgres::{self as pg, IdentitySample};
use oncely_process::preflight::CheckFindings;

const CHECK: &str = "data.identity";
const HOUR: Duration = Duration::from_secs(3_600);

pub(super) async fn run_checks(limits: &Limits, asking: &mut CheckSession<'_>) {
    let Some(clock) = ask!(asking, CHECK, pg::read_clock) else { return };
    let since = clock.database - TimeDelta::hours(1);
    if let Some(samples) = ask!(asking, CHECK, pg::identity_sample, since) {
        asking.found.add_read(CHECK, format!("decisions of {} consumers in the last hour", samples.len()));
        for sample in samples {
            identities(&sample, limits, asking.found);
        }
    }
    if let Some(stats) = ask!(asking, CHECK, pg::consumer_stats, since, HOUR * 2) {
        let mut sums = std::collections::BTreeMap::new();
        for span in stats {
            let sum: &mut (i64, i64) = sums.entry(span.consumer).or_default();
            sum.0 += span.delivered;
            sum.1 += span.duplicates;
        }
        for (consumer, (delivered, duplicates)) in sums {
            asking.found.add_read(
                CHECK,
                format!("{consumer}: {duplicates} of {delivered} deliveries were duplicates"),
            );
            if delivered >= limits.decisions && duplicates * 5 >= delivered * 2 {
                let what = format!(
                    "{} of its deliveries of the last hour were duplicates: does a publisher send everything twice, or give different \
                     messages one key?",
                    percent(duplicates, delivered)
                );
                asking.found.warning(CHECK, format!("consumers.{consumer}.key"), what);
            }
        }
    }
}

fn identities(sample: &IdentitySample, limits: &Limits, found: &mut CheckFindings) {
    let IdentitySample { consumer, decisions, without, conflicts, times, longest } = sample;
    found.add_read(
        CHECK,
        format!(
            "{consumer}: of {decisions} decisions {without} without a valid tenant or key, {conflicts} of keys with another payload, \
             {times} of keys that read as times; the longest key has {longest} bytes"
        ),
    );
    if *decisions < limits.decisions {
        return;
    }
    let place = |what: &str| format!("consumers.{consumer}.{what}");
    let of = |count: &i64| percent(*count, *decisions);
    if without * 20 >= *decisions {
        let what = format!(
            "{} of the last hour's messages came without a valid tenant or key: they are dead letters",
            of(without)
        );
        found.warning(CHECK, place("key"), what);
    }
    if conflicts * 20 >= *decisions {
        let what = format!(
            "{} of the last hour's decisions were refused because the key came with another payload: different messages share keys, \
             or the payload changes from copy to copy (see fingerprint)",
            of(conflicts)
        );
        found.warning(CHECK, place("key"), what);
    }
    if times * 2 >= *decisions {
        let what = format!(
            "{} of the last hour's keys read as times: two messages of one moment would be taken for one, and a message that is \
             published again gets a new key",
            of(times)
        );
        found.warning(CHECK, place("key"), what);
    }
}

fn percent(part: i64, whole: i64) -> String {
    format!("{} %", part.saturating_mul(100) / whole.max(1))
}
