//! Results of the doctor's checks, as a section of its page.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::checkup::{CheckRunnerStatus, FinishedCheckRun};
use super::super::html::{ago, code, format_duration, text};
use super::super::page::csrf_field;
use oncely_doctor::{CheckResult, Report, Verdict};

/// Begins a run of the checks, and redirects to their page.
pub(super) async fn begin_run(request: PageRequest) -> PageResult {
    request.app.checkup.begin(&request.app.config);
    Ok(PageReply::SeeOther(request.link("/doctor").with_anchor("checks-title")))
}

/// Renders the results; begins a run if the last one is too old.
pub(super) fn section(request: &PageRequest, now: DateTime<Utc>) -> Markup {
    let CheckRunnerStatus { is_running, last } = request.app.checkup.refresh(&request.app.config);
    html! {
        section aria-labelledby="checks-title" {
            h2 #checks-title { "Checks" }
            p {
                @match &last {
                    Some(last) => (summary(last, now)),
                    None => span.quiet { "No run of this console has ended yet." },
                }
                " "
                @if is_running { span.quiet { "Running now." } }
            }
            @if !is_running && request.viewer.is_operator() {
                form.inline method="post" action=(request.app.access.site().path("/doctor/run")) {
                    (csrf_field(&request.viewer))
                    button #run-checks { "Run now" }
                }
            }
            @if let Some(last) = &last { (results(&last.report)) }
        }
    }
}

/// Counts the checks with a verdict.
fn count_verdict(report: &Report, verdict: Verdict) -> usize {
    report.checks.iter().filter(|result| result.verdict == verdict).count()
}

fn summary(last: &FinishedCheckRun, now: DateTime<Utc>) -> Markup {
    let report = &last.report;
    html! {
        (report.checks.len()) " checks as " (report.role.to_string()) ", " (ago(last.at, now)) ", in " (format_duration(last.duration.as_secs_f64())) ": "
        @for (index, verdict) in [Verdict::Error, Verdict::Warning, Verdict::Info, Verdict::Skipped, Verdict::Ok].into_iter().enumerate() {
            @if index > 0 { ", " }
            (count_verdict(report, verdict)) " " (verdict.as_str())
        }
        "."
    }
}

fn results(report: &Report) -> Markup {
    let of = |verdicts: &'static [Verdict]| {
        report.checks.iter().filter(move |result| verdicts.contains(&result.verdict))
    };
    html! {
        ul.findings #bad-checks {
            @for result in of(&[Verdict::Error]).chain(of(&[Verdict::Warning])) { (bad_check(result)) }
        }
        @for (title, id, verdicts) in [
            ("Information", "info-checks", &[Verdict::Info][..]),
            ("Skipped", "skipped-checks", &[Verdict::Skipped]),
            ("Fine", "fine-checks", &[Verdict::Ok]),
        ] {
            @if of(verdicts).next().is_some() {
                details id=(id) {
                    summary { (title) ": " (of(verdicts).count()) }
                    ul.plain { @for result in of(verdicts) { (other_check(result)) } }
                }
            }
        }
    }
}

/// Renders a failed check with its fixes.
fn bad_check(result: &CheckResult) -> Markup {
    let (style, sign, word) = match result.verdict {
        Verdict::Error => ("bad", "■", "error: "),
        _ => ("look", "▲", "warning: "),
    };
    html! {
        li {
            span class=(format!("sign {style}")) aria-hidden="true" { (sign) }
            span.unseen { (word) }
            b { (result.check.title) } " " (code(result.check.id))
            @for finding in &result.findings {
                br; @if !finding.about.is_empty() { (text(&finding.about)) ": " } (text(&finding.text))
            }
            br; span.quiet { "Fix: " (result.check.fix) ". See " code { (result.page) } }
        }
    }
}

fn other_check(result: &CheckResult) -> Markup {
    html! {
        li {
            (code(result.check.id)) " " (result.check.title)
            @for finding in &result.findings {
                br; span.quiet { @if !finding.about.is_empty() { (text(&finding.about)) ": " } (text(&finding.text)) }
            }
        }
    }
}
