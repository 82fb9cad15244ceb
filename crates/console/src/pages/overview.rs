//! Overview: a verdict, four totals, three plots, the consumers, and recent actions of users.

use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{
    ago, format_capped, format_duration, format_number, format_rate, sentence_with_commands, text,
};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::plot::spark;
use super::super::series::Series;
use super::super::watch::{RecentActivity, StatusView};
use super::plots::{self, PlotQuery};
use super::table::{consumers, format_duplicate_share, rate_per_second, recent_counts};
use oncely_core::shown;
use oncely_ops::overview::ConsumerOverview;
use oncely_ops::status::{DatabaseSnapshot, Severity, StatusFinding};
use oncely_postgres::{self as pg, ActionRow};

/// Maximum number of findings that are shown here; the others are on Doctor.
const MAX_FINDINGS: usize = 6;

/// Renders `/`: the verdict, the totals, plots, and the consumers.
///
/// # Errors
/// If PostgreSQL does not answer, or a query fails.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let view = request.app.query_status().await;
    let (Ok(database), Some(activity)) = (&view.snapshot.postgres, &view.activity) else {
        return Err(build_unavailable_error(&view));
    };
    let query = PlotQuery::from_request(&request);
    let series = request.app.plots.query_series(&request.app.pool, query.range).await?;
    let mut page = Page::new(Tab::Overview, "Overview");
    page.verdict = Some(verdict(&view));
    page.live = html! {
        (servers(&view))
        (totals(database, activity))
        (findings(&request, &view.findings))
        (plots(&request, &query, &series))
        section aria-labelledby="consumers-title" {
            h2 #consumers-title { "Consumers" }
            (consumers(&request, &view, database, activity))
        }
        (actions(database, &activity.actions))
    };
    page.equivalents = EquivalentCommands {
        cli: vec!["oncely status --watch".to_owned()],
        sql: vec![pg::equivalent_sql::overview(), pg::equivalent_sql::actions()],
    };
    Ok(page.into())
}

/// Builds the error of a view without a database: PostgreSQL does not answer, or a query failed.
pub(super) fn build_unavailable_error(view: &StatusView) -> PageError {
    match view.snapshot.postgres.as_ref().err() {
        Some(failure) if !failure.is_away => PageError::Failed(failure.text.clone()),
        failure => PageError::Away(failure.map(|failure| failure.text.clone()).unwrap_or_default()),
    }
}

/// Renders the verdict in a few sentences.
fn verdict(view: &StatusView) -> Markup {
    let dangers: Vec<&StatusFinding> =
        view.findings.iter().filter(|finding| finding.severity == Severity::Danger).collect();
    let notices = view.findings.len() - dangers.len();
    let paused: Vec<&str> = view
        .snapshot
        .postgres
        .as_ref()
        .map(|database| database.overview.pauses.iter().map(|pause| pause.consumer.as_str()).collect())
        .unwrap_or_default();
    let more = match notices {
        0 => String::new(),
        1 => " One finding can wait for working hours.".to_owned(),
        count => format!(" {count} findings can wait for working hours."),
    };
    if let Some(first) = dangers.first() {
        let others = match dangers.len() - 1 {
            0 => String::new(),
            1 => " One more consumer, queue or process is affected.".to_owned(),
            count => format!(" {count} more findings like it."),
        };
        let sentence = format!("{}: {}.", first.about, first.text.lines().next().unwrap_or_default());
        return html! { span.sign.bad aria-hidden="true" { "■" } b { "Action needed now. " } (sentence_with_commands(&sentence)) (others) (more) };
    }
    if view.snapshot.rabbitmq.is_err() {
        return html! { span.sign.bad aria-hidden="true" { "■" } b { "RabbitMQ does not answer. " } "No message comes in, and none is lost." (more) };
    }
    let pauses = match paused[..] {
        [] => String::new(),
        [one] => format!(" {} is paused.", shown::escape_value(one)),
        _ => format!(" {} consumers are paused.", paused.len()),
    };
    if notices == 0 {
        return html! { span.sign.fine aria-hidden="true" { "●" } b { "Working. " } "No findings." };
    }
    html! { span.sign.fine aria-hidden="true" { "●" } b { "Working. " } "No consumer is stalled." (pauses) (more) }
}

/// Renders the servers that don't answer.
fn servers(view: &StatusView) -> Markup {
    html! {
        @if let Err(why) = &view.snapshot.rabbitmq {
            p.said { "RabbitMQ does not answer, so queues are not counted here: " (text(why)) }
        }
    }
}

#[allow(clippy::cast_precision_loss)] // shown as seconds
fn totals(database: &DatabaseSnapshot, activity: &RecentActivity) -> Markup {
    let sum = |of: fn(&ConsumerOverview) -> i64| database.overview.consumers.iter().map(of).sum::<i64>();
    let dead: i64 = activity.stats.iter().map(|stats| stats.dead_lettered).sum();
    let oldest = |at: Option<chrono::DateTime<chrono::Utc>>| {
        at.map_or(0.0, |at| (database.now - at).num_milliseconds().max(0) as f64 / 1_000.0)
    };
    let (events, mirror) = (oldest(database.events.oldest_due), oldest(database.mirror_queue.oldest));
    html! {
        dl.numbers {
            div {
                dt { "Done per second, last minute" }
                dd { b { (format_rate(rate_per_second(sum(|one| one.done)))) } (spark("Done", "done", &recent_counts(activity, None, |s| s.completed + s.refused))) }
            }
            div {
                dt { "Duplicates" }
                dd {
                    b { (format_duplicate_share(sum(|one| one.duplicates), sum(|one| one.delivered))) }
                    (spark("Duplicates", "duplicates", &recent_counts(activity, None, |s| s.duplicates)))
                }
            }
            div {
                dt { "Dead letters in 15 min" }
                dd {
                    b.bad[dead > 0] { (format_number(dead)) }
                    (spark("Dead letters", "dead", &recent_counts(activity, None, |s| s.dead_lettered)))
                    small { (format_capped(activity.open_letters)) " waiting" }
                }
            }
            div {
                dt { "Oldest in the outbox" }
                dd {
                    b.look[events > 60.0] { (if database.events.oldest_due.is_some() || database.mirror_queue.oldest.is_some() { format_duration(events.max(mirror)) } else { "–".to_owned() }) }
                    small {
                        @if events >= mirror && database.events.oldest_due.is_some() { "an event for RabbitMQ" }
                        @else if database.mirror_queue.oldest.is_some() { "a record for Redis: only slower" }
                        @else { "empty" }
                    }
                }
            }
        }
    }
}

fn findings(request: &PageRequest, findings: &[StatusFinding]) -> Markup {
    html! {
        @if !findings.is_empty() {
            section aria-labelledby="findings-title" {
                h2 #findings-title { "Findings" }
                ul.findings {
                    @for finding in findings.iter().take(MAX_FINDINGS) { (finding_item(finding)) }
                }
                @if findings.len() > MAX_FINDINGS {
                    p { a #all-findings href=(request.link("/doctor")) { "All " (findings.len()) } }
                }
            }
        }
    }
}

/// Renders a finding as a list item.
pub(super) fn finding_item(finding: &StatusFinding) -> Markup {
    let (style, sign) = match finding.severity {
        Severity::Danger => ("bad", "■"),
        Severity::Notice => ("look", "▲"),
    };
    let mut lines = finding.text.lines();
    html! {
        li {
            span class=(format!("sign {style}")) aria-hidden="true" { (sign) }
            span.unseen { @match finding.severity { Severity::Danger => "danger: ", Severity::Notice => "look: " } }
            b { (text(&finding.about)) } " " (sentence_with_commands(lines.next().unwrap_or_default()))
            @for line in lines { br; span.quiet { (sentence_with_commands(line.trim())) } }
        }
    }
}

fn plots(request: &PageRequest, query: &PlotQuery, series: &Series) -> Markup {
    html! {
        section.plots #plots aria-labelledby="plots-title" {
            h2 #plots-title { "Over time" }
            (query.choices(&request.link("/")))
            div.figures {
                (plots::outcomes(query, series, None))
                (plots::durations(query, series, None))
                (plots::ages(query, series))
            }
        }
    }
}

fn actions(database: &DatabaseSnapshot, actions: &[ActionRow]) -> Markup {
    html! {
        section aria-labelledby="actions-title" {
            h2 #actions-title { "Operator actions" }
            @if actions.is_empty() { p.quiet { "Nothing yet." } }
            ul.actions {
                @for action in actions {
                    li {
                        (text(&action.actor)) " " b { (text(&action.verb)) } " × " (format_number(action.count)) ", "
                        (ago(action.occurred_at, database.now))
                        @if let Some(reason) = &action.reason { ": " q { (text(reason)) } }
                    }
                }
            }
        }
    }
}
