//! Results of the doctor's checks, as a section of its page.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::checkup::{CheckRunnerStatus, FinishedCheckRun};
use super::super::html::{ago, code, duration, text};
use super::super::page::csrf;
use oncely_doctor::{CheckResult, Report, Verdict};

/// Begins a run, and redirects to the page.
pub(super) async fn run(ask: PageRequest) -> PageResult {
    ask.app.checkup.begin(&ask.app.config);
    Ok(PageReply::SeeOther(ask.link("/doctor").to("checks-title")))
}

/// Renders the results; begins a run if the last one is too old.
pub(super) fn section(ask: &PageRequest, now: DateTime<Utc>) -> Markup {
    let CheckRunnerStatus { is_running, last } = ask.app.checkup.status(&ask.app.config);
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
            @if !is_running && ask.visitor.is_operator() {
                form.inline method="post" action=(ask.app.access.site().path("/doctor/run")) {
                    (csrf(&ask.visitor))
                    button #run-checks { "Run now" }
                }
            }
            @if let Some(last) = &last { (all(&last.report)) }
        }
    }
}

fn count(report: &Report, verdict: Verdict) -> usize {
    report.checks.iter().filter(|examined| examined.verdict == verdict).count()
}

fn summary(last: &FinishedCheckRun, now: DateTime<Utc>) -> Markup {
    let report = &last.report;
    html! {
        (report.checks.len()) " checks as " (report.role.to_string()) ", " (ago(last.at, now)) ", in " (duration(last.took.as_secs_f64())) ": "
        @for (index, verdict) in [Verdict::Error, Verdict::Warning, Verdict::Info, Verdict::Skipped, Verdict::Ok].into_iter().enumerate() {
            @if index > 0 { ", " }
            (count(report, verdict)) " " (verdict.as_str())
        }
        "."
    }
}

fn all(report: &Report) -> Markup {
    let of = |verdicts: &'static [Verdict]| {
        report.checks.iter().filter(move |examined| verdicts.contains(&examined.verdict))
    };
    html! {
        ul.findings #bad-checks {
            @for examined in of(&[Verdict::Error]).chain(of(&[Verdict::Warning])) { (bad(examined)) }
        }
        @for (title, id, verdicts) in [
            ("Information", "info-checks", &[Verdict::Info][..]),
            ("Skipped", "skipped-checks", &[Verdict::Skipped]),
            ("Fine", "fine-checks", &[Verdict::Ok]),
        ] {
            @if of(verdicts).next().is_some() {
                details id=(id) {
                    summary { (title) ": " (of(verdicts).count()) }
                    ul.plain { @for examined in of(verdicts) { (other(examined)) } }
                }
            }
        }
    }
}

/// Renders a failed check with its fixes.
fn bad(examined: &CheckResult) -> Markup {
    let (style, sign, word) = match examined.verdict {
        Verdict::Error => ("bad", "■", "error: "),
        _ => ("look", "▲", "warning: "),
    };
    html! {
        li {
            span class=(format!("sign {style}")) aria-hidden="true" { (sign) }
            span.unseen { (word) }
            b { (examined.check.title) } " " (code(examined.check.id))
            @for finding in &examined.findings {
                br; @if !finding.about.is_empty() { (text(&finding.about)) ": " } (text(&finding.text))
            }
            br; span.quiet { "Fix: " (examined.check.fix) ". See " code { (examined.page) } }
        }
    }
}

fn other(examined: &CheckResult) -> Markup {
    html! {
        li {
            (code(examined.check.id)) " " (examined.check.title)
            @for finding in &examined.findings {
                br; span.quiet { @if !finding.about.is_empty() { (text(&finding.about)) ": " } (text(&finding.text)) }
            }
        }
    }
}
