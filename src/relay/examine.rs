//! The doctor's hourly look, so that what drifts wakes somebody.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::doctor::{self, Verdict};
use crate::metrics::DoctorMetrics;
use crate::vitals::Vitals;

/// How often.
const INTERVAL: Duration = Duration::from_secs(3_600);
/// After the start, so that the other processes of a roll-out have started, too.
const FIRST: Duration = Duration::from_secs(30);
/// All of it: dozens of questions of two seconds at the most.
const LONGEST: Duration = Duration::from_secs(300);

/// Looks until `stop`. What the relay's login may not read is skipped, and not told as fine.
pub(super) async fn examine(
    config: Config,
    vitals: Arc<Vitals>,
    metrics: DoctorMetrics,
    stop: CancellationToken,
) {
    let beat = vitals.liveness.watch("the doctor");
    let mut pause = FIRST;
    loop {
        beat.expect(pause + LONGEST);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = INTERVAL;
        // Dropped, it leaves nothing behind.
        let report = tokio::select! {
            () = stop.cancelled() => return,
            report = doctor::run(&config) => report,
        };
        for examined in &report.checks {
            let id = examined.check.id;
            metrics.found(id, report.count(id, Verdict::Warning), report.count(id, Verdict::Error));
            let bad = |verdict| matches!(verdict, Verdict::Warning | Verdict::Error);
            for finding in examined.findings.iter().filter(|finding| bad(finding.verdict)) {
                let (about, page) = (&finding.about, &examined.page);
                tracing::warn!(check = id, about, page, "the doctor found: {}", finding.text);
            }
        }
    }
}
