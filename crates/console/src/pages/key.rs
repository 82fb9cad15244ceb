//! A key's page: verdict, timeline, facts, and actions.

use chrono::{DateTime, Utc};
use maud::{Markup, html};

use super::super::ask::{PageRequest, PageResult};
use super::super::error::PageError;
use super::super::html::{ago, code, exact_time, format_duration, text, time};
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::keys::batch_link;
use super::leases::{release_link, steps};
use super::reveal::{RevealTarget, record_reveal};
use super::rows::trace_link;
use super::settle::settle_link;
use oncely_core::mask::Visibility;
use oncely_core::shown;
use oncely_ops::story::{KeyStory, RepeatedDecision, fold_decisions, format_conclusion, read_stories};
use oncely_ops::trail;
use oncely_postgres::{self as pg, Abilities, AuditRow, LeaseStep, LetterRow};

/// The page of a key: its inputs, without the stories.
struct KeyPage<'a> {
    request: &'a PageRequest,
    pub key: &'a str,
    now: DateTime<Utc>,
    abilities: Abilities,
    visibility: Visibility,
}

/// Renders `/key`: all facts about a key; its response is masked.
///
/// # Errors
/// If the key is missing, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    Ok(build_page(&request, Visibility::Outline).await?.into())
}

/// Renders `/key/reveal`: the page with the unmasked response. It is recorded before.
///
/// # Errors
/// If it can't be recorded, or PostgreSQL does not answer.
pub(super) async fn reveal(request: PageRequest) -> PageResult {
    let mut page = build_page(&request, Visibility::Revealed).await?;
    page.is_refreshed = false;
    Ok(page.into())
}

/// Builds the page of a key; with the response unmasked, it is recorded first.
async fn build_page(request: &PageRequest, visibility: Visibility) -> Result<Page, PageError> {
    let Some(key) = request.parameters.get("key") else {
        return Err(PageError::Wrong("The key is missing. Search for it on Keys & trail.".to_owned()));
    };
    let (tenant, consumer) = (request.parameters.get("tenant"), request.parameters.get("consumer"));
    let mut pooled = request.app.pool.acquire().await?;
    let stories = read_stories(&request.app.config, &mut pooled.session, key, tenant, consumer).await?;
    let since = if stories.is_empty() {
        trail::find_oldest_time(&mut pooled.session.connection).await?
    } else {
        None
    };
    let key_page = KeyPage {
        request,
        key,
        now: pooled.session.clock.now(),
        abilities: pooled.facts.clone(),
        visibility,
    };
    pooled.give_back();
    if visibility == Visibility::Revealed {
        for story in &stories {
            let (tenant, consumer) = (&story.tenant, &story.consumer);
            record_reveal(request, RevealTarget { kind: "key", id: None, tenant, consumer, key }).await?;
        }
    }
    let mut page = Page::new(Tab::Keys, key);
    page.is_subject = true;
    page.heading = match &stories[..] {
        [one] => html! { span.quiet { (text(&one.tenant)) " · " (text(&one.consumer)) " · " } (code(key)) },
        _ => code(key),
    };
    page.live = html! {
        @if stories.is_empty() { (unknown_key_notice(since)) }
        @for (index, story) in stories.iter().enumerate() { (key_page.story(story, index, stories.len() > 1)) }
    };
    let flags = shown::format_shell_flags([("tenant", tenant), ("consumer", consumer)]);
    // A key that looks like an option is placed after all options.
    let command = match key.starts_with('-') {
        true => format!("oncely explain{flags} -- {}", shown::quote_shell_word(key)),
        false => format!("oncely explain {}{flags}", shown::quote_shell_word(key)),
    };
    let sql = match stories.first() {
        Some(story) => pg::equivalent_sql::key(&story.tenant, &story.consumer, key),
        None => pg::equivalent_sql::key(tenant.unwrap_or("…"), consumer.unwrap_or("…"), key),
    };
    page.equivalents = EquivalentCommands { cli: vec![command], sql: sql.to_vec() };
    Ok(page)
}

/// Renders that nothing is known of the key. `since`: the beginning of the trail.
fn unknown_key_notice(since: Option<DateTime<Utc>>) -> Markup {
    html! {
        p.lead { "Nothing is known of this key." }
        @match since {
            Some(since) => p {
                "It was not seen since " (time(since)) ", when the trail begins; or it came before that and was collected, or it is not decided yet: in a queue, or held by a \
                 worker that waits for something (see its log)."
            },
            None => p { "The trail is empty: no message was decided yet." },
        }
    }
}

/// An event of the timeline.
struct TimelineEntry {
    at: DateTime<Utc>,
    sign: &'static str,
    style: &'static str,
    content: Markup,
}

impl KeyPage<'_> {
    fn story(&self, story: &KeyStory, index: usize, is_one_of_many: bool) -> Markup {
        html! {
            section aria-label=(format!("{} · {}", oncely_core::shown::escape_value(&story.tenant), oncely_core::shown::escape_value(&story.consumer))) {
                @if is_one_of_many { h2 id=(format!("story-{index}")) { (text(&story.tenant)) " · " (text(&story.consumer)) } }
                p.lead { (format_conclusion(story)) }
                (self.letters(story, index))
                ol.timeline aria-label="Timeline" {
                    @for event in self.timeline(story) {
                        li {
                            span class=(format!("dot {}", event.style)) aria-hidden="true" { (event.sign) }
                            span.what { (event.content) }
                            span.when { (exact_time(event.at)) }
                        }
                    }
                }
                @if !self.request.app.config.audit.duplicates && story.timeline.iter().all(|row| row.outcome != "duplicate") {
                    p.note { "Duplicates are counted, and listed here only with " code { "audit.duplicates = true" } "." }
                }
                (self.facts(story, index))
            }
        }
    }

    /// Returns the events of a key in the order of time.
    fn timeline(&self, story: &KeyStory) -> Vec<TimelineEntry> {
        let mut events: Vec<TimelineEntry> = fold_decisions(&story.timeline)
            .iter()
            .map(|decision| self.decision_entry(story, decision))
            .collect();
        if let Some(details) = &story.details
            && story.timeline.first().is_none_or(|row| row.occurred_at > details.created_at)
            && details.completed_at != Some(details.created_at)
        {
            events.push(TimelineEntry {
                at: details.created_at,
                sign: "◦",
                style: "quiet",
                content: html! { "first claimed" },
            });
        }
        for letter in story.letters.iter().filter(|letter| letter.state != "waiting") {
            events.push(TimelineEntry {
                at: letter.updated_at,
                sign: if letter.state == "discarded" { "–" } else { "↺" },
                style: "quiet",
                content: html! { (text(&letter.state)) " by an operator" },
            });
        }
        events.sort_by_key(|event| event.at);
        events
    }

    /// Returns the event of a decision and its repetitions.
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    fn decision_entry(&self, story: &KeyStory, decision: &RepeatedDecision<'_>) -> TimelineEntry {
        let row: &AuditRow = decision.first;
        let (sign, style) = match row.outcome.as_str() {
            "completed" => ("●", "fine"),
            "duplicate" => ("○", "quiet"),
            "retried" => ("↻", "look"),
            "refused" => ("⊘", "look"),
            "observed" => ("◌", "quiet"),
            "taken_over" | "fenced" => ("⇄", "look"),
            _ => ("✗", "bad"),
        };
        let duration = row.duration_us.map(|micros| format_duration(micros as f64 / 1_000_000.0));
        let content = html! {
            @if decision.count > 1 { b { (decision.count) " × " } }
            span class=(format!("outcome {}", row.outcome)) { (row.outcome) }
            @if row.attempt > 0 { ", attempt " (row.attempt) }
            @if let Some(duration) = duration { ", " (duration) }
            @if let Some(reason) = &row.reason {
                @if row.outcome == "duplicate" { ", not run: " (text(reason)) " knew it" (self.completion_age(story, row)) } @else { ", " (text(reason)) }
            }
            @if let Some(detail) = &row.detail { ": " (text(detail)) }
            span.quiet {
                " · worker " (text(&row.worker)) ", queue " (text(&row.queue))
                @if let Some(login) = &row.login { ", login " (text(login)) }
                @if decision.count > 1 { ", until " (exact_time(decision.last.occurred_at)) }
                " · " a href=(batch_link(self.request, &story.consumer, &row.worker, row.occurred_at)) { "its batch" }
                @if let Some(trace) = &row.trace_id { " · " (self.trace(trace)) }
            }
        };
        TimelineEntry { at: row.occurred_at, sign, style, content }
    }

    /// Renders the time between the completion of the key and a later duplicate.
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    fn completion_age(&self, story: &KeyStory, row: &AuditRow) -> Markup {
        let first = story.details.as_ref().and_then(|details| details.completed_at);
        html! {
            @if let Some(first) = first && first <= row.occurred_at {
                ", completed " (format_duration((row.occurred_at - first).num_milliseconds() as f64 / 1_000.0)) " before"
            }
        }
    }

    fn trace(&self, trace: &str) -> Markup {
        trace_link(self.request, trace)
    }

    /// Renders waiting letters, with their actions.
    fn letters(&self, story: &KeyStory, index: usize) -> Markup {
        let waiting: Vec<&LetterRow> = story
            .letters
            .iter()
            .filter(|letter| ["waiting", "requeueing"].contains(&letter.state.as_str()))
            .collect();
        let may_requeue = self.request.viewer.is_operator() && self.abilities.change_letters;
        html! {
            @for letter in &waiting {
                p.said {
                    "A dead letter waits, from " (ago(letter.dead_lettered_at, self.now)) ": " b { (text(&letter.reason)) } " "
                    (text(letter.detail.as_deref().unwrap_or_default())) " "
                    a id=(format!("letter-{index}-{}", letter.id)) href=(self.request.link("/failed/letter").with("id", letter.id.to_string())) { "Look at it" }
                    @if may_requeue && letter.reason != "key_conflict" {
                        " · " a id=(format!("requeue-{index}-{}", letter.id)) href=(self.request.link("/failed/plan").with("change", "requeue").with("id", letter.id.to_string())) { "Requeue…" }
                    }
                }
            }
        }
    }

    fn facts(&self, story: &KeyStory, index: usize) -> Markup {
        let Some(details) = &story.details else { return Markup::default() };
        let digest = details.fingerprint.as_ref().map(|fingerprint| {
            let digest = fingerprint.iter().skip(4).map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("{digest}…")
        });
        let masks = &self.request.app.masks;
        html! {
            h2 id=(format!("facts-{index}")) { "Facts" }
            dl.facts {
                dt { "Status" }
                dd {
                    (details.status) @if let Some(reason) = &details.reason { ", " (text(reason)) }
                    @if self.request.viewer.is_operator() && details.is_to_settle(self.now) {
                        " · " a id=(format!("settle-{index}")) href=(settle_link(self.request, details)) { "Settle…" }
                    }
                }
                dt { "Attempts" } dd { (details.attempts) }
                dt { "First claimed" } dd { (exact_time(details.created_at)) }
                @if let Some(at) = details.completed_at { dt { "Final since" } dd { (exact_time(at)) " (" (ago(at, self.now)) ")" } }
                @if let Some(digest) = digest { dt { "Payload" } dd { "SHA-256 " (code(&digest)) } }
                dt { "Known as a duplicate" }
                dd {
                    @match story.protected_until {
                        Some(until) if until > self.now => { "until " (time(until)) },
                        Some(until) => { "retention ended " (time(until)) "; collected by the next run of gc" },
                        None if details.completed_at.is_some() => "for ever: no worker has started with this consumer here",
                        None if details.fencing_token.is_some() => "not completed: the next delivery runs, under a lease only",
                        None => "not completed: the next delivery runs",
                    }
                }
                dt { "Mirror" }
                dd { @match story.mirrored { Some(true) => "has it, of this epoch", Some(false) => "does not have it: PostgreSQL answers", None => "could not be asked" } }
                @if let (Some(owner), Some(until)) = (&details.owner, details.not_before) {
                    dt { "Lease" }
                    dd {
                        "held by " (text(owner)) ", "
                        @if until > self.now { "until " (time(until)) } @else { span.look { "over since " (time(until)) } }
                        @if self.request.viewer.is_operator() {
                            " · " a id=(format!("release-{index}")) href=(release_link(self.request, &story.tenant, &story.consumer, self.key)) { "Release…" }
                        }
                    }
                }
                @if let Some(json) = &details.steps { dt { "Steps" } dd { (steps(&LeaseStep::parse_steps(json))) } }
                @if let Some(status) = details.http_status { dt { "HTTP" } dd { "answered with " (status) } }
                @if let Some(error) = &details.last_error { dt { "Last error" } dd { (text(error)) } }
            }
            @if let Some(why) = &story.unreadable {
                h2 id=(format!("response-{index}")) { "Response" }
                p { (text(why)) }
            } @else if let Some(response) = &details.response {
                h2 id=(format!("response-{index}")) { "Response" }
                pre.message tabindex="0" { (masks.mask_text(response, self.visibility)) }
                @if self.visibility == Visibility::Outline && self.request.viewer.is_operator() && self.abilities.record {
                    form.inline method="post" action=(self.request.app.access.site().path("/key/reveal")) {
                        (csrf_field(&self.request.viewer))
                        input type="hidden" name="key" value=(self.key);
                        input type="hidden" name="tenant" value=(story.tenant);
                        input type="hidden" name="consumer" value=(story.consumer);
                        button { "Reveal" }
                        small { "It is recorded that you looked." }
                    }
                }
            }
        }
    }
}
