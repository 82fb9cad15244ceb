//! The plan of a requeue or a discard, and the form that begins it.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::digest::compute_digest;
use super::super::error::PageError;
use super::super::html::{ago, code, format_number, text};
use super::super::operations::MAX_RUNNING;
use super::super::page::{EquivalentCommands, Page, Tab, csrf_field};
use super::failed::LetterQuery;
use oncely_core::units::format_count;
use oncely_ops::letters::{Change, LetterChangePlan, Order, Overrides, requeue_refusal};
use oncely_postgres::{self as pg, LetterFilter, PlannedLetter};

/// Maximum number of letters per operation.
const MAX_LETTERS: i64 = 10_000;
/// Letters per second: default and maximum.
const DEFAULT_RATE: u32 = 50;
const MAX_RATE: u32 = 1_000;
/// Maximum number of letters that a plan lists.
const MAX_SAMPLES: usize = 5;

/// The requested change.
struct ChangeRequest {
    change: Change,
    query: LetterQuery,
    id: Option<Uuid>,
    /// Later letters are not included.
    until: DateTime<Utc>,
}

impl ChangeRequest {
    /// Parses the change from the parameters of a request. Without `until`, later letters than `now` are not included.
    ///
    /// # Errors
    /// If the change is missing, or the id invalid.
    fn from_request(request: &PageRequest, now: DateTime<Utc>) -> Result<Self, PageError> {
        let change = match request.parameters.get_trimmed("change") {
            Some("requeue") => Change::Requeue,
            Some("discard") => Change::Discard,
            _ => return Err(PageError::Wrong("Requeue, or discard?".to_owned())),
        };
        let id = match request.parameters.get_trimmed("id").map(Uuid::try_parse) {
            None => None,
            Some(Ok(id)) => Some(id),
            Some(Err(_)) => return Err(PageError::Wrong("The id of a letter is a UUID.".to_owned())),
        };
        let until = request
            .parameters
            .get_trimmed("until")
            .and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
        Ok(Self { change, query: LetterQuery::from_request(request), id, until: until.unwrap_or(now) })
    }

    /// Returns the filter of a query for the letters.
    fn to_filter(&self, now: DateTime<Utc>) -> Result<LetterFilter, PageError> {
        if let Some(id) = self.id {
            return Ok(LetterFilter {
                ids: Some(vec![id]),
                limit: MAX_LETTERS + 1,
                ..LetterFilter::default()
            });
        }
        let filter = self.query.to_filter(now, MAX_LETTERS + 1)?;
        // The plan selects the state: open letters.
        Ok(LetterFilter { until: Some(self.until), states: None, ..filter })
    }

    /// Returns whether letters are selected by failure or key, and not only by origin and time.
    fn names_letters(&self) -> bool {
        self.id.is_some()
            || self.query.reason.is_some()
            || self.query.group.is_some()
            || self.query.key.is_some()
    }

    /// Queries the letters and makes the plan; `None` if there are more letters than one operation takes: then their keys are not queried.
    async fn make_plan(
        &self,
        connection: &mut sqlx::PgConnection,
        now: DateTime<Utc>,
    ) -> Result<Option<LetterChangePlan>, PageError> {
        if LetterChangePlan::count(connection, self.change, &self.to_filter(now)?).await? > MAX_LETTERS {
            return Ok(None);
        }
        let names_letters = self.names_letters();
        let refuse = |letter: &PlannedLetter| match self.change {
            Change::Requeue => requeue_refusal(letter, names_letters, Overrides::default()),
            Change::Discard => None,
        };
        Ok(Some(LetterChangePlan::make(connection, now, self.change, self.to_filter(now)?, refuse).await?))
    }

    /// Renders the filter as fields of a form.
    fn fields(&self) -> Markup {
        let [query @ .., _] = self.query.parameters();
        let id = self.id.map(|id| id.to_string());
        let until = self.until.timestamp_micros().to_string();
        let fields =
            [("change", Some(self.change.verb())), ("id", id.as_deref()), ("until", Some(until.as_str()))];
        html! {
            @for (name, value) in fields.into_iter().chain(query) {
                @if let Some(value) = value { input type="hidden" name=(name) value=(value); }
            }
        }
    }

    fn title(&self) -> &'static str {
        match self.change {
            Change::Requeue => "Requeue",
            Change::Discard => "Discard",
        }
    }

    /// Formats the equivalent command.
    fn to_command(&self) -> String {
        let verb = self.change.verb();
        match self.id {
            Some(id) => format!("oncely failed {verb} {id}"),
            None => format!("oncely failed {verb}{}", self.query.to_flags()),
        }
    }
}

/// Parses the requested change, and makes its plan: `None` if there are more letters than one operation takes.
async fn make_requested_plan(
    request: &PageRequest,
) -> Result<(ChangeRequest, Option<LetterChangePlan>), PageError> {
    let mut pooled = request.acquire_for(|may| may.change_letters, "may not change dead letters").await?;
    let now = pooled.session.clock.now();
    let change_request = ChangeRequest::from_request(request, now)?;
    let plan = change_request.make_plan(&mut pooled.session.connection, now).await?;
    pooled.give_back();
    Ok((change_request, plan))
}

/// Renders `/failed/plan`: the plan of a requeue or a discard, and the form that begins it.
///
/// # Errors
/// If the request is invalid, the console's login may not change dead letters, or PostgreSQL does not answer.
pub(super) async fn page(request: PageRequest) -> PageResult {
    let (change_request, plan) = make_requested_plan(&request).await?;
    Ok(match plan {
        Some(plan) => build_plan_page(&request, &change_request, &plan, None),
        None => build_too_many_page(&request, &change_request),
    }
    .into())
}

/// Builds the page for more letters than one operation takes.
fn build_too_many_page(request: &PageRequest, change_request: &ChangeRequest) -> Page {
    let mut page = Page::new(Tab::Failed, change_request.title());
    page.is_refreshed = false;
    page.above = html! {
        p.lead { "More than " (format_number(MAX_LETTERS)) " dead letters match: that is more than one operation takes." }
        p { "Narrow it down, by their time, reason or tenant: " a #narrow href=(change_request.query.link(request, "/failed/letters")) { "these letters" } "." }
    };
    page.equivalents = EquivalentCommands { cli: vec![change_request.to_command()], sql: Vec::new() };
    page
}

/// Builds the page of a plan with its form. `message`: the reason why the last attempt changed nothing.
fn build_plan_page(
    request: &PageRequest,
    change_request: &ChangeRequest,
    plan: &LetterChangePlan,
    message: Option<&str>,
) -> Page {
    let number = plan.letters.len();
    let mut page = Page::new(Tab::Failed, change_request.title());
    page.is_refreshed = false;
    page.above = html! {
        @if let Some(message) = message { p.said role="alert" { (message) } }
        p.lead {
            @match plan.letters.first() {
                None => "There is nothing to do.",
                Some(oldest) => { (format_count(number, "dead letter")) ", the oldest from " (ago(oldest.dead_lettered_at, plan.now)) "." },
            }
        }
        @match change_request.change {
            Change::Requeue => p { "Each is published to its queue again, with its key runnable. What took effect meanwhile is not run: publishing twice is harmless." },
            Change::Discard => p { "A discarded message does not run, and its key stays as it is. It leaves its dead-letter queue." },
        }
        (contents(request, plan))
        @if number > 0 && request.viewer.is_operator() { (confirm_form(request, change_request, plan)) }
        @if !request.viewer.is_operator() { p.note { "You may look at this; carrying it out takes the role operator." } }
    };
    page.equivalents = EquivalentCommands {
        cli: vec![change_request.to_command()],
        sql: vec![pg::equivalent_sql::letters(&plan.filter)],
    };
    page
}

fn contents(request: &PageRequest, plan: &LetterChangePlan) -> Markup {
    html! {
        ul.findings {
            @for note in &plan.notes { li { span.sign.look aria-hidden="true" { "▲" } (note) "." } }
            @for (why, number) in &plan.refused { li { span.sign.bad aria-hidden="true" { "✗" } (number) " left alone: " (why) "." } }
        }
        @if !plan.letters.is_empty() {
            h2 #groups-title { "Which" }
            ul.plain { @for (group, number) in plan.groups().into_iter().take(20) { li { b { (format_number(i128::try_from(number).unwrap_or(0))) } " × " (code(group)) } } }
            h2 #samples-title { "Such as" }
            ul.plain {
                @for letter in plan.letters.iter().take(MAX_SAMPLES) {
                    li {
                        a id=(format!("sample-{}", letter.id)) href=(request.link("/failed/letter").with("id", letter.id.to_string())) { (code(&letter.key)) }
                        " · " (text(&letter.tenant)) " · " (text(&letter.consumer)) " " span.quiet { (text(letter.detail.as_deref().unwrap_or_default())) }
                    }
                }
            }
        }
    }
}

/// Returns the digest of a plan's letters.
fn digest_letters(plan: &LetterChangePlan) -> String {
    compute_digest(plan.letters.iter().map(|letter| (letter.tenant.as_str(), letter.id, letter.generation)))
}

fn confirm_form(request: &PageRequest, change_request: &ChangeRequest, plan: &LetterChangePlan) -> Markup {
    let number = plan.letters.len();
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(request.app.access.site().path("/failed/operate")) {
            (csrf_field(&request.viewer))
            (change_request.fields())
            input type="hidden" name="digest" value=(digest_letters(plan));
            label for="note" { "Why, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            @if change_request.change == Change::Requeue {
                label for="rate" { "Messages per second, at most" }
                input #rate type="number" name="rate" value=(DEFAULT_RATE) min="1" max=(MAX_RATE);
            }
            label for="typed" { "Type " (number) " to confirm" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            button.strong { @match change_request.change { Change::Requeue => "Requeue ", Change::Discard => "Discard " } (number) }
        }
    }
}

/// Begins the confirmed operation, if the letters are still those that were shown, and their number was typed; otherwise renders the plan
/// with the reason.
pub(super) async fn begin_operation(request: PageRequest) -> PageResult {
    let (change_request, plan) = make_requested_plan(&request).await?;
    let Some(plan) = plan else {
        return Ok(PageReply::from_rejected_action(build_too_many_page(&request, &change_request)));
    };
    let number = plan.letters.len();
    let reject = |message: &str| {
        Ok(PageReply::from_rejected_action(build_plan_page(&request, &change_request, &plan, Some(message))))
    };
    let Some(reason) = request.parameters.get_trimmed("note") else { return reject("A reason is required.") };
    if number == 0 {
        return reject("There is nothing to do any more.");
    }
    if request.parameters.get_trimmed("typed") != Some(number.to_string().as_str()) {
        return reject(&format!("Nothing was changed: there are {number} now; type that number to confirm."));
    }
    if request.parameters.get_trimmed("digest") != Some(digest_letters(&plan).as_str()) {
        return reject(
            "Nothing was changed: these are other letters than the plan showed. Look at them again.",
        );
    }
    let rate = match change_request.change {
        Change::Requeue => request
            .parameters
            .get_trimmed("rate")
            .and_then(|text| text.parse().ok())
            .unwrap_or(DEFAULT_RATE)
            .clamp(1, MAX_RATE),
        Change::Discard => MAX_RATE,
    };
    let order = Order {
        plan: plan.clone(),
        actor: request.viewer.session.user.actor(),
        reason: Some(reason.to_owned()),
        rate: Some(rate),
        // Only the command line requeues a letter that is older than keys and trail remember.
        overrides: Overrides::default(),
        application: "oncely console",
    };
    let Some(operation) = request.app.operations.begin(&request.app.config, order) else {
        return reject(&format!(
            "Nothing was changed: {MAX_RUNNING} operations are under way in this console. Wait for one, or stop one."
        ));
    };
    Ok(PageReply::SeeOther(request.link("/failed/operation").with("id", operation.id.to_string())))
}
