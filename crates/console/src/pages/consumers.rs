//! All consumers with their state, and all processes.

use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::html::{ago, code, format_number, text};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::overview::build_unavailable_error;
use super::table::consumers;
use oncely_ops::overview::ProcessOverview;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres as pg;

/// Renders `/consumers`: all consumers and processes.
///
/// # Errors
/// If PostgreSQL does not answer, or a query fails.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let view = request.app.query_status().await;
    let (Ok(database), Some(activity)) = (&view.snapshot.postgres, &view.activity) else {
        return Err(build_unavailable_error(&view));
    };
    let mut page = Page::new(Tab::Consumers, "Consumers");
    page.live = html! {
        (consumers(&request, &view, database, activity))
        section aria-labelledby="processes-title" {
            h2 #processes-title { "Processes" }
            (processes(&request, database))
        }
    };
    page.equivalents = EquivalentCommands {
        cli: vec!["oncely consumers list".to_owned(), "oncely status".to_owned()],
        sql: vec![pg::equivalent_sql::consumers(), pg::equivalent_sql::processes()],
    };
    Ok(page.into())
}

fn processes(request: &PageRequest, database: &DatabaseSnapshot) -> Markup {
    let digest = &request.app.config.digest;
    html! {
        div.scroll tabindex="0" role="group" aria-label="Processes" {
            table #processes {
                caption.unseen { "Processes by their heartbeats" }
                thead {
                    tr {
                        th scope="col" { "Process" }
                        th scope="col" { "State" }
                        th scope="col" { "Version" }
                        th scope="col" { "Host" }
                        th.number scope="col" { "Pid" }
                        th scope="col" { "Login" }
                        th scope="col" title="Names the file that it was started with" { "Configuration" }
                        th scope="col" { "Started" }
                        th scope="col" { "Seen" }
                    }
                }
                tbody {
                    @for process in &database.overview.processes {
                        @let row = &process.row;
                        tr {
                            th scope="row" { (row.kind) " " (text(&row.name)) }
                            td { (process_state(process)) }
                            td { (text(&row.version)) @if row.version != env!("CARGO_PKG_VERSION") { " " span.look { "another than this console's" } } }
                            td { (text(&row.host)) }
                            td.number { (row.pid) }
                            td { (text(&row.login)) }
                            td { (code(&row.config_digest)) @if row.config_digest != *digest { " " span.look { "another than here" } } }
                            td { (ago(row.started_at, database.now)) }
                            td { (ago(row.last_seen_at, database.now)) }
                        }
                    }
                    @if database.overview.processes.is_empty() {
                        tr { td.empty colspan="9" { "No worker and no relay has been seen within an hour." } }
                    }
                }
            }
        }
        p.quiet {
            (format_number(i128::try_from(database.overview.processes.len()).unwrap_or(0))) " within an hour. This console's configuration is " (code(digest)) "."
        }
    }
}

/// Renders the state of a process: silent, or the state of its last heartbeat.
fn process_state(process: &ProcessOverview) -> Markup {
    let row = &process.row;
    let (style, sign, word) = match row.state.as_str() {
        _ if process.silent => ("bad", "✗", "silent"),
        "ready" => ("fine", "●", "ready"),
        "starting" => ("look", "◔", "starting"),
        "stopping" => ("look", "◑", "stopping"),
        _ => ("bad", "■", "not ready"),
    };
    html! {
        span class=(format!("state {style}")) { span aria-hidden="true" { (sign) } " " (word) }
        @if let Some(reason) = &row.reason { " " span.quiet { (text(reason)) } }
    }
}
