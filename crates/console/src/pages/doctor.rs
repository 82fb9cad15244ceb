//! Doctor: findings and fixes; servers, versions, and the configuration without its secrets.

use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::html::{
    code, format_bytes, format_capped, format_config_duration, format_number, text, time,
};
use super::super::page::{EquivalentCommands, Page, Tab};
use super::super::watch::StatusView;
use super::checks;
use super::overview::{build_unavailable_error, finding_item};
use oncely_config::{Config, MirrorSettings};
use oncely_core::units::format_count;
use oncely_ops::status::{DatabaseSnapshot, Severity, StatusFinding};
use oncely_postgres as pg;

/// Renders `/doctor`: findings, checks, servers, and the configuration.
///
/// # Errors
/// If PostgreSQL does not answer, or a query fails.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let view = request.app.query_status().await;
    let Ok(database) = &view.snapshot.postgres else { return Err(build_unavailable_error(&view)) };
    let mut page = Page::new(Tab::Doctor, "Doctor");
    page.live = html! {
        (findings(&view.findings))
        (checks::section(&request, database.now))
        (servers(&request.app.config, &view, database))
        (tables(database))
    };
    page.below = configuration(&request.app.config);
    page.equivalents = EquivalentCommands {
        cli: vec!["oncely status".to_owned(), "oncely doctor".to_owned()],
        sql: vec![pg::equivalent_sql::processes()],
    };
    Ok(page.into())
}

fn findings(findings: &[StatusFinding]) -> Markup {
    let of = |severity: Severity| findings.iter().filter(move |finding| finding.severity == severity);
    let list = |title: &str, id: &str, severity: Severity| {
        html! {
            @if of(severity).next().is_some() {
                section aria-labelledby=(id) {
                    h2 id=(id) { (title) }
                    ul.findings { @for finding in of(severity) { (finding_item(finding)) } }
                }
            }
        }
    };
    html! {
        p.lead {
            @match (of(Severity::Danger).count(), of(Severity::Notice).count()) {
                (0, 0) => { span.sign.fine aria-hidden="true" { "●" } "No findings." },
                (0, notices) => { span.sign.look aria-hidden="true" { "▲" } (format_count(notices, "finding")) " for working hours. Messages are being processed." },
                (dangers, notices) => { span.sign.bad aria-hidden="true" { "■" } (format_count(dangers, "finding")) " with messages that are not processed, " (notices) " for working hours." },
            }
        }
        (list("Messages are not processed", "danger-title", Severity::Danger))
        (list("For working hours", "look-title", Severity::Notice))
    }
}

fn servers(config: &Config, view: &StatusView, database: &DatabaseSnapshot) -> Markup {
    let row = |name: &str, url: String, failure: Option<&String>, more: Markup| {
        html! {
            tr {
                th scope="row" { (name) }
                td { @match failure { None => span.state.fine { span aria-hidden="true" { "●" } " answers" }, Some(why) => { span.state.bad { span aria-hidden="true" { "✗" } " does not answer: " } (text(why)) } } }
                td { (code(&url)) }
                td { (more) }
            }
        }
    };
    html! {
        section aria-labelledby="servers-title" {
            h2 #servers-title { "Servers" }
            div.scroll tabindex="0" role="group" aria-label="Servers" {
                table {
                    caption.unseen { "Servers" }
                    thead { tr { th scope="col" { "Server" } th scope="col" { "State" } th scope="col" { "URL" } th scope="col" { "" } } }
                    tbody {
                        @let read_only = "takes no writes".to_owned();
                        (row("PostgreSQL", config.postgres.redacted(), database.read_only.then_some(&read_only), html! { "epoch " (code(&database.epoch)) }))
                        @if config.has_broker {
                            (row("RabbitMQ", config.rabbitmq.redacted(), view.snapshot.rabbitmq.as_ref().err(), Markup::default()))
                        }
                        @if let (Some(mirror), Some(redis)) = (&config.mirror, &view.snapshot.redis) {
                            (row("Redis", mirror.redacted(), redis.as_ref().err().map(|failure| &failure.text), html! { "only makes duplicates cheaper" }))
                        }
                    }
                }
            }
        }
    }
}

fn tables(database: &DatabaseSnapshot) -> Markup {
    let tables = &database.tables;
    html! {
        section aria-labelledby="tables-title" {
            h2 #tables-title { "What is kept" }
            dl.facts {
                dt { "Keys" } dd { "about " (format_number(tables.keys)) ", " (format_bytes(tables.keys_bytes)) "; " (format_capped(tables.failed)) " given up" }
                dt { "Trail" } dd { "about " (format_bytes(tables.audit_bytes)) ", partitions up to the week of " (tables.last_partition.as_deref().unwrap_or("(none: rows go to the default one)")) }
                dt { "Sealed up to" } dd { @match tables.sealing_since { Some(at) => (time(at)), None => "not yet" } }
                dt { "Cell" } dd { (code(&database.cell)) }
            }
        }
    }
}

fn configuration(config: &Config) -> Markup {
    let time = format_config_duration;
    let rows = [
        ("cell.name", config.cell.clone()),
        ("postgres.url", config.postgres.redacted()),
        ("postgres.statement_timeout", time(config.postgres.statement_timeout)),
        ("rabbitmq.url", config.rabbitmq.redacted()),
        ("rabbitmq.heartbeat", time(config.rabbitmq.heartbeat)),
        ("redis.url", config.mirror.as_ref().map_or_else(|| "none".to_owned(), MirrorSettings::redacted)),
        ("gc.schedule", config.gc.expression.clone()),
        ("audit.retention", time(config.audit.retention)),
        ("audit.duplicates", config.audit.duplicates.to_string()),
        ("events.batch × lanes", format!("{} × {}", config.events.batch, config.events.lanes)),
        ("dead_letters.max_body", format_bytes(i64::from(config.dead_letters.max_body))),
        ("dead_letters.tenant_letters", config.dead_letters.tenant_letters.to_string()),
        ("dead_letters.tenant_bytes", format_bytes(i64::from(config.dead_letters.tenant_bytes))),
    ];
    html! {
        section aria-labelledby="configuration-title" {
            h2 #configuration-title { "Configuration of this console, without secrets" }
            p.quiet { "oncely " (env!("CARGO_PKG_VERSION")) ", digest " (code(&config.digest)) }
            dl.facts { @for (name, value) in rows { dt { code { (name) } } dd { (text(&value)) } } }
        }
    }
}
