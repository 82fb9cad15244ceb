//! Runs the doctor every hour, so that drift is reported.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_config::Config;
use oncely_doctor::{self as doctor, Verdict};
use oncely_process::metrics::DoctorMetrics;
use oncely_process::vitals::Vitals;

/// Interval between runs.
const INTERVAL: Duration = Duration::from_secs(3_600);
/// First run after the start, so that the other processes of a roll-out have started, too.
const FIRST: Duration = Duration::from_secs(30);
/// Longest run: dozens of queries of two seconds at most.
const LONGEST: Duration = Duration::from_secs(300);

/// Runs the doctor until `stop`. Checks that the relay's login may not read are skipped, and not reported as fine.
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
                tracing::warn!(check = id, about, page, "doctor: {}", finding.text);
            }
        }
    }
}
