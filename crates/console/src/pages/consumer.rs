//! A consumer's page: state, recent work, settings; pause and resume.

use chrono::{DateTime, TimeDelta, Utc};
use maud::{Markup, html};

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{
    ago, code, exact_time, format_capped, format_config_duration, format_number, text, text_or, time,
};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::super::settings::list_settings;
use super::super::watch::{RecentActivity, StatusView};
use super::consumer_state::{pause_details, state_sign};
use super::leases;
use super::overview::build_unavailable_error;
use super::plots::{self, PlotQuery};
use oncely_config::Config;
use oncely_core::shown;
use oncely_ops::status::DatabaseSnapshot;
use oncely_postgres::{self as pg, KnownConsumer};

/// The value of the form for a pause that an operator must end.
const UNTIL_RESUMED: &str = "until-resumed";
/// Bounds of other lengths.
const MIN_DURATION: TimeDelta = TimeDelta::seconds(1);
const MAX_DURATION: TimeDelta = TimeDelta::days(3_650);

/// Renders `/consumer`: one consumer, named by `name`.
///
/// # Errors
/// If there is no such consumer, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let name = request.parameters.get("name").unwrap_or_default().to_owned();
    let view = request.app.query_status().await;
    let (Ok(database), Some(activity)) = (&view.snapshot.postgres, &view.activity) else {
        return Err(build_unavailable_error(&view));
    };
    let query = PlotQuery::from_request(&request);
    let series = request.app.plots.query_series(&request.app.pool, query.range).await?;
    let mut pooled = request.app.pool.acquire().await?;
    let consumers = pg::list_consumers(&mut pooled.session.connection).await?;
    pooled.give_back();
    let known_consumer = consumers.into_iter().find(|consumer| consumer.consumer == name);
    let overview = database.overview.consumer(&name);
    if known_consumer.is_none() && overview.is_none() {
        return Err(PageError::NotFound(
            "No consumer of that name is configured here, and no worker of one has started.".to_owned(),
        ));
    }
    // A consumer that has just started is not in the overview yet.
    let state = overview.map(|one| one.with_queues(&view.snapshot.queues(&name)).state).unwrap_or_default();
    let mut page = Page::new(Tab::Consumers, &name);
    page.is_subject = true;
    page.heading = html! { (text(&name)) };
    page.verdict = Some(html! { (state_sign(state)) (pause_details(database, &name)) });
    page.above = pause_form(&request, &name, database, activity);
    page.live = html! {
        (failures(&request, &view, database, &name))
        (leases::lease_summary(&request, database.lease_counts(&name), &name, database.now))
        section.plots #plots aria-labelledby="plots-title" {
            h2 #plots-title { "Over time" }
            (query.choices(&request.link("/consumer").with("name", &name)))
            div.figures {
                (plots::outcomes(&query, &series, Some(&name)))
                (plots::durations(&query, &series, Some(&name)))
            }
        }
        (queues(&view, database, &name))
        (workers(&view, database, &name))
    };
    page.below = html! { (retention(known_consumer.as_ref())) (configuration(&request.app.config, &name)) };
    page.equivalents = EquivalentCommands {
        cli: vec![
            format!("oncely consumers list --consumer {}", shown::quote_shell_word(&name)),
            format!("oncely audit list --consumer {} --since 1h", shown::quote_shell_word(&name)),
        ],
        sql: vec![pg::equivalent_sql::consumer(&name), pg::equivalent_sql::failing(&name)],
    };
    Ok(page.into())
}

/// Renders the failure that stalls the consumer, its last failure, and the keys that are retried.
fn failures(request: &PageRequest, view: &StatusView, database: &DatabaseSnapshot, name: &str) -> Markup {
    let reports = || view.snapshot.workers(name);
    let stalled = reports().find_map(|(process, report)| Some((process, report.condition.stalled.as_ref()?)));
    let last_failure = reports()
        .filter_map(|(_, report)| report.condition.failed.as_ref())
        .max_by_key(|failure| failure.since);
    let state = database.consumers.iter().find(|state| state.consumer == name);
    let failing: Vec<_> = database.failing.iter().filter(|key| key.consumer == name).collect();
    let key_link = |tenant: &str, key: &str| {
        let link = request.link("/key").with("tenant", tenant).with("consumer", name).with("key", key);
        html! { a id=(format!("key-{}", super::table::anchor(&format!("{tenant}\0{key}")))) href=(link) { (code(key)) } }
    };
    html! {
        @if let Some((process, failure)) = stalled {
            p.said {
                b { "Stalled " } (ago(failure.since, database.now)) ": " (text(&failure.text))
                @if let Some(state) = &failure.code { " (SQLSTATE " (text(state)) ")" }
                ", says worker " (text(&process.row.name)) ". It is retried and continues by itself."
            }
        }
        @if let Some(state) = state && state.failing > 0 {
            section aria-labelledby="failing-title" {
                h2 #failing-title { (format_capped(state.failing)) " failed and are tried again" }
                table {
                    caption.unseen { "The oldest of them" }
                    thead { tr { th scope="col" { "Key" } th scope="col" { "Tenant" } th.number scope="col" { "Attempts" } th scope="col" { "Since" } th scope="col" { "Next try" } th scope="col" { "Last error" } } }
                    tbody {
                        @for key in failing {
                            tr {
                                th scope="row" { (key_link(&key.tenant, &key.key)) }
                                td { (text(&key.tenant)) }
                                td.number { (key.attempts) }
                                td { (ago(key.created_at, database.now)) }
                                td { @match key.not_before { Some(at) if at > database.now => (time(at)), _ => "when it comes" } }
                                td { (text(key.last_error.as_deref().unwrap_or_default())) }
                            }
                        }
                    }
                }
            }
        }
        @if let Some(failure) = last_failure {
            p.note {
                "The last failure, " (ago(failure.since, database.now)) ": " (text(&failure.text))
                @if let (Some(tenant), Some(key)) = (&failure.tenant, &failure.key) { " · " (text(tenant)) " · " code { (text(key)) } }
            }
        }
    }
}

fn queues(view: &StatusView, database: &DatabaseSnapshot, name: &str) -> Markup {
    let Ok(states) = &view.snapshot.rabbitmq else {
        return html! { p.said { "RabbitMQ does not answer, so queues are not counted here." } };
    };
    let shown = |number: Option<u32>| number.map_or_else(|| "missing".to_owned(), format_number);
    html! {
        section aria-labelledby="queues-title" {
            h2 #queues-title { "Queues" }
            div.scroll tabindex="0" role="group" aria-label="Queues" {
                table {
                    caption.unseen { "Queues of this consumer" }
                    thead { tr { th scope="col" { "Queue" } th.number scope="col" { "Ready" } th.number scope="col" { "Unacked" } th.number scope="col" { "Retrying" } th.number scope="col" { "Dead" } th.number scope="col" { "Subscriptions" } th scope="col" { "Missing" } } }
                    tbody {
                        @for state in states.iter().filter(|state| state.consumer == name) {
                            tr {
                                th scope="row" { (code(&state.queue)) }
                                td.number { (shown(state.ready)) }
                                td.number { (view.snapshot.unacknowledged_deliveries(name, &state.queue).map_or_else(|| "–".to_owned(), format_number)) }
                                td.number { (format_number(state.retrying)) }
                                td.number { (format_number(database.dead_letters(&state.queue))) }
                                td.number { (shown(state.subscriptions)) }
                                td { (text_or(&state.missing.join(", "), "none")) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn workers(view: &StatusView, database: &DatabaseSnapshot, name: &str) -> Markup {
    html! {
        section aria-labelledby="workers-title" {
            h2 #workers-title { "Workers" }
            div.scroll tabindex="0" role="group" aria-label="Workers" {
                table {
                    caption.unseen { "What the workers of this consumer have done since their starts" }
                    thead {
                        tr {
                            th scope="col" { "Worker" } th scope="col" { "State" } th.number scope="col" { "Done" }
                            th.number scope="col" { "Duplicates" } th.number scope="col" { "by mirror" } th.number scope="col" { "Retried" } th.number scope="col" { "Dead" }
                            th.number scope="col" title="Their copies for retry or dead-letter queues don't arrive" { "Unsettled" } th scope="col" { "Last completion" }
                        }
                    }
                    tbody {
                        @for (process, report) in view.snapshot.workers(name) {
                            @let counts = &report.counts;
                            tr {
                                th scope="row" { (text(&process.row.name)) }
                                td { (text(&process.row.state)) @if let Some(reason) = &process.row.reason { ": " (text(reason)) } }
                                td.number { (format_number(counts.answers())) }
                                td.number { (format_number(counts.duplicates())) }
                                td.number { (format_number(counts.duplicates_mirror)) }
                                td.number { (format_number(counts.retried)) }
                                td.number { (format_number(counts.dead_lettered)) }
                                td.number { (format_number(i128::try_from(report.unsettled).unwrap_or(0))) }
                                td { @match report.condition.completed_at { Some(at) => (ago(at, database.now)), None => span.quiet { "none" } } }
                            }
                        }
                        @if view.snapshot.workers(name).next().is_none() { tr { td.empty colspan="9" { "No worker of it is running." } } }
                    }
                }
            }
        }
    }
}

/// Renders the retention of the consumer's keys, as the database has it.
fn retention(consumer: Option<&KnownConsumer>) -> Markup {
    html! {
        section aria-labelledby="memory-title" {
            h2 #memory-title { "Retention of keys" }
            @match consumer {
                None => p { "No worker of it has started on this database: nothing of it is remembered yet." },
                Some(consumer) => dl.facts {
                    dt { "Keys are kept for" } dd { (format_config_duration(consumer.retention)) }
                    dt { "The oldest copy that may still come" }
                    dd {
                        (format_config_duration(consumer.redelivery_horizon))
                        @if consumer.retention < consumer.redelivery_horizon { " " span.bad { "longer than keys are kept: it would run again" } }
                    }
                    dt { "Compared when a key comes back" } dd { (code(&consumer.fingerprint)) }
                    dt { "Another payload under a known key" } dd { (code(&consumer.on_conflict)) }
                    dt { "Last changed" } dd { (exact_time(consumer.changed_at)) " by " (text(&consumer.changed_by)) }
                },
            }
        }
    }
}

fn configuration(config: &Config, name: &str) -> Markup {
    let consumer = config.consumers.iter().find(|consumer| consumer.name.as_str() == name);
    html! {
        section aria-labelledby="configuration-title" {
            h2 #configuration-title { "Configuration, as this console has it" }
            @match consumer {
                None => p { "This consumer is not in this console's file." },
                Some(consumer) => div.scroll tabindex="0" role="group" aria-label="Configuration" {
                    table.settings {
                        caption.unseen { "Settings in force, and the defaults of those that differ" }
                        thead { tr { th scope="col" { "Setting" } th scope="col" { "Value" } th scope="col" { "Default" } } }
                        tbody {
                            @for setting in list_settings(consumer) {
                                tr.differs[setting.default.is_some()] {
                                    th scope="row" { code { (setting.name) } }
                                    td { (text_or(&setting.value, "none")) }
                                    td { @if let Some(default) = &setting.default { (text_or(default, "none")) } @else { span.quiet { "" } } }
                                }
                            }
                        }
                    }
                },
            }
        }
    }
}

/// Renders the form that pauses or resumes the consumer; nothing for a viewer, and a note if the console's login may not do it.
fn pause_form(
    request: &PageRequest,
    name: &str,
    database: &DatabaseSnapshot,
    activity: &RecentActivity,
) -> Markup {
    if !request.viewer.is_operator() {
        return Markup::default();
    }
    if !activity.abilities.pause {
        return html! { p.note { "The console's login " (text(&activity.abilities.login)) " may not pause consumers: that needs the role oncely_operator." } };
    }
    let site = request.app.access.site();
    html! {
        @match database.pause(name) {
            Some(_) => form.inline method="post" action=(site.path("/consumer/resume")) {
                (csrf_field(&request.viewer))
                input type="hidden" name="name" value=(name);
                label for="resume-reason" { "Why" }
                input.long #resume-reason type="text" name="reason" maxlength="1000" placeholder="optional";
                button { "Resume" }
            },
            None => form.inline method="post" action=(site.path("/consumer/pause")) {
                (csrf_field(&request.viewer))
                input type="hidden" name="name" value=(name);
                label for="pause-reason" { "Why" }
                input.long #pause-reason type="text" name="reason" maxlength="1000" required;
                label for="pause-for" { "For" }
                select #pause-for name="for" {
                    option value="15m" { "15 minutes" }
                    option value="1h" selected { "an hour" }
                    option value="8h" { "8 hours" }
                    option value="1d" { "a day" }
                    option value=(UNTIL_RESUMED) { "until it is resumed" }
                }
                button { "Pause" }
            },
        }
    }
}

/// Returns the parameter `name`.
///
/// # Errors
/// If it is missing.
fn consumer_name(request: &PageRequest) -> Result<&str, PageError> {
    request
        .parameters
        .get("name")
        .ok_or_else(|| PageError::Wrong("The consumer's name is missing.".to_owned()))
}

/// Pauses a consumer, for the time and with the reason of the form.
pub(super) async fn pause(request: PageRequest) -> PageResult {
    let name = consumer_name(&request)?;
    let Some(reason) = request.parameters.get_trimmed("reason") else {
        return Err(PageError::Wrong(
            "A pause needs a reason: it is shown while the consumer is paused.".to_owned(),
        ));
    };
    let mut pooled = request.acquire_for(|may| may.pause, "may not pause consumers").await?;
    let now = pooled.session.clock.now();
    let until = match pause_end(request.parameters.get_trimmed("for").unwrap_or_default(), now) {
        Ok(until) => until,
        Err(error) => {
            pooled.give_back();
            return Err(error);
        }
    };
    let actor = request.viewer.session.user.actor();
    pg::pause_consumer(&mut pooled.session.connection, name, until, reason, &actor).await?;
    pooled.give_back();
    Ok(PageReply::SeeOther(request.link("/consumer").with("name", name)))
}

/// Returns the end of a pause of this length; `None` for [`UNTIL_RESUMED`].
///
/// # Errors
/// If it is neither that nor a duration within the bounds.
fn pause_end(length: &str, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, PageError> {
    if length == UNTIL_RESUMED {
        return Ok(None);
    }
    let length = humantime::parse_duration(length).ok().and_then(|length| TimeDelta::from_std(length).ok());
    match length.filter(|length| (MIN_DURATION..=MAX_DURATION).contains(length)) {
        Some(length) => Ok(Some(now + length)),
        None => Err(PageError::Wrong(format!(
            "A pause lasts for a time such as 15m, 1h or 1d, ten years at most, or {UNTIL_RESUMED}."
        ))),
    }
}

/// Resumes a consumer.
pub(super) async fn resume(request: PageRequest) -> PageResult {
    let name = consumer_name(&request)?;
    let mut pooled = request.acquire_for(|may| may.pause, "may not pause consumers").await?;
    let actor = request.viewer.session.user.actor();
    let reason = request.parameters.get_trimmed("reason");
    pg::resume_consumer(&mut pooled.session.connection, name, reason, &actor).await?;
    pooled.give_back();
    Ok(PageReply::SeeOther(request.link("/consumer").with("name", name)))
}
