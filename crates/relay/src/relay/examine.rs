//! Runs the doctor every hour, so that drift is reported.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use oncely_config::Config;
use oncely_doctor::{self as doctor, Verdict};
use oncely_process::metrics::DoctorMetrics;
use oncely_process::vitals::Vitals;

/// Interval between runs.
const RUN_INTERVAL: Duration = Duration::from_secs(3_600);
/// Delay of the first run after the start, so that the other processes of a roll-out have started, too.
const FIRST_RUN_DELAY: Duration = Duration::from_secs(30);
/// Maximum time of a run: dozens of queries of two seconds at most.
const MAX_RUN_TIME: Duration = Duration::from_secs(300);

/// Runs the doctor every hour until `stop`; sets the metrics of its findings, and logs the bad ones. Checks that the relay's login may not
/// read are skipped, and not reported as fine.
pub(super) async fn run_doctor(
    config: Config,
    vitals: Arc<Vitals>,
    metrics: DoctorMetrics,
    stop: CancellationToken,
) {
    let beat = vitals.liveness.watch("the doctor");
    let mut pause = FIRST_RUN_DELAY;
    loop {
        beat.begin_step(pause + MAX_RUN_TIME);
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = RUN_INTERVAL;
        // Dropped, it leaves nothing behind.
        let report = tokio::select! {
            () = stop.cancelled() => return,
            report = doctor::run(&config) => report,
        };
        for check_report in &report.checks {
            let id = check_report.check.id;
            metrics.set_findings(id, report.count(id, Verdict::Warning), report.count(id, Verdict::Error));
            let bad = |verdict| matches!(verdict, Verdict::Warning | Verdict::Error);
            for finding in check_report.findings.iter().filter(|finding| bad(finding.verdict)) {
                let (about, page) = (&finding.about, &check_report.page);
                tracing::warn!(check = id, about, page, "doctor: {}", finding.text);
            }
        }
    }
}
