//! The plan of a requeue or a discard, and the order to carry it out.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{PageReply, PageRequest, PageResult};
use super::super::digest::digest;
use super::super::error::PageError;
use super::super::html::{ago, code, count, text};
use super::super::operations::MOST_AT_ONCE;
use super::super::page::{EquivalentCommands, Page, Tab, csrf};
use super::failed::LetterQuery;
use oncely_core::units::counted;
use oncely_ops::letters::{Change, LetterChangePlan, Order, Overrides, requeue_refusal};
use oncely_postgres::{self as pg, LetterFilter, PlannedLetter};

/// Maximum number of letters per operation.
const MOST: i64 = 10_000;
/// Letters per second: default and maximum.
const RATE: u32 = 50;
const FASTEST: u32 = 1_000;
/// Letters that a plan lists.
const SAMPLES: usize = 5;

/// The requested change.
struct ChangeRequest {
    change: Change,
    wanted: LetterQuery,
    id: Option<Uuid>,
    /// Later letters are not included.
    until: DateTime<Utc>,
}

impl ChangeRequest {
    fn from_request(ask: &PageRequest, now: DateTime<Utc>) -> Result<Self, PageError> {
        let change = match ask.parameters.word("change") {
            Some("requeue") => Change::Requeue,
            Some("discard") => Change::Discard,
            _ => return Err(PageError::Wrong("Requeue, or discard?".to_owned())),
        };
        let id = match ask.parameters.word("id").map(Uuid::try_parse) {
            None => None,
            Some(Ok(id)) => Some(id),
            Some(Err(_)) => return Err(PageError::Wrong("The id of a letter is a UUID.".to_owned())),
        };
        let until =
            ask.parameters.word("until").and_then(|text| DateTime::from_timestamp_micros(text.parse().ok()?));
        Ok(Self { change, wanted: LetterQuery::from_request(ask), id, until: until.unwrap_or(now) })
    }

    fn filter(&self, now: DateTime<Utc>) -> Result<LetterFilter, PageError> {
        if let Some(id) = self.id {
            return Ok(LetterFilter { ids: Some(vec![id]), limit: MOST + 1, ..LetterFilter::default() });
        }
        let filter = self.wanted.filter(now, MOST + 1)?;
        // The plan selects the state: open letters.
        Ok(LetterFilter { until: Some(self.until), states: None, ..filter })
    }

    /// Returns whether letters are selected by failure or key, and not only by origin and time.
    fn names_letters(&self) -> bool {
        self.id.is_some()
            || self.wanted.reason.is_some()
            || self.wanted.group.is_some()
            || self.wanted.key.is_some()
    }

    /// Returns `None` if there are more letters than one operation takes: then their keys are not queried.
    async fn plan(
        &self,
        connection: &mut sqlx::PgConnection,
        now: DateTime<Utc>,
    ) -> Result<Option<LetterChangePlan>, PageError> {
        if LetterChangePlan::count(connection, self.change, &self.filter(now)?).await? > MOST {
            return Ok(None);
        }
        let named = self.names_letters();
        let refuse = |letter: &PlannedLetter| match self.change {
            Change::Requeue => requeue_refusal(letter, named, Overrides::default()),
            Change::Discard => None,
        };
        Ok(Some(LetterChangePlan::make(connection, now, self.change, self.filter(now)?, refuse).await?))
    }

    /// Renders the filter as fields of a form.
    fn fields(&self) -> Markup {
        let [wanted @ .., _] = self.wanted.parts();
        let id = self.id.map(|id| id.to_string());
        let until = self.until.timestamp_micros().to_string();
        let own =
            [("change", Some(self.change.verb())), ("id", id.as_deref()), ("until", Some(until.as_str()))];
        html! {
            @for (name, value) in own.into_iter().chain(wanted) {
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

    fn command(&self) -> String {
        let verb = self.change.verb();
        match self.id {
            Some(id) => format!("oncely failed {verb} {id}"),
            None => format!("oncely failed {verb}{}", self.wanted.flags()),
        }
    }
}

/// Reads a change, and makes its plan: `None` if there are more letters than one operation takes.
async fn planned(ask: &PageRequest) -> Result<(ChangeRequest, Option<LetterChangePlan>), PageError> {
    let mut pooled = ask.acquire_for(|may| may.change_letters, "may not change dead letters").await?;
    let now = pooled.session.clock.now();
    let asked = ChangeRequest::from_request(ask, now)?;
    let plan = asked.plan(&mut pooled.session.connection, now).await?;
    pooled.give_back();
    Ok((asked, plan))
}

/// Renders the plan.
pub(super) async fn page(ask: PageRequest) -> PageResult {
    let (asked, plan) = planned(&ask).await?;
    Ok(match plan {
        Some(plan) => plan_page(&ask, &asked, &plan, None),
        None => too_many(&ask, &asked),
    }
    .into())
}

/// Renders that there are more letters than one operation takes.
fn too_many(ask: &PageRequest, asked: &ChangeRequest) -> Page {
    let mut page = Page::new(Tab::Failed, asked.title());
    page.polls = false;
    page.above = html! {
        p.lead { "More than " (count(MOST)) " dead letters match: that is more than one operation takes." }
        p { "Narrow it down, by their time, reason or tenant: " a #narrow href=(asked.wanted.link(ask, "/failed/letters")) { "these letters" } "." }
    };
    page.elsewhere = EquivalentCommands { cli: vec![asked.command()], sql: Vec::new() };
    page
}

fn plan_page(ask: &PageRequest, asked: &ChangeRequest, plan: &LetterChangePlan, said: Option<&str>) -> Page {
    let number = plan.letters.len();
    let mut page = Page::new(Tab::Failed, asked.title());
    page.polls = false;
    page.above = html! {
        @if let Some(said) = said { p.said role="alert" { (said) } }
        p.lead {
            @match plan.letters.first() {
                None => "There is nothing to do.",
                Some(oldest) => { (counted(number, "dead letter")) ", the oldest from " (ago(oldest.dead_lettered_at, plan.now)) "." },
            }
        }
        @match asked.change {
            Change::Requeue => p { "Each is published to its queue again, with its key runnable. What took effect meanwhile is not run: publishing twice is harmless." },
            Change::Discard => p { "A discarded message does not run, and its key stays as it is. It leaves its dead-letter queue." },
        }
        (contents(ask, plan))
        @if number > 0 && ask.visitor.is_operator() { (order(ask, asked, plan)) }
        @if !ask.visitor.is_operator() { p.note { "You may look at this; carrying it out takes the role operator." } }
    };
    page.elsewhere = EquivalentCommands {
        cli: vec![asked.command()],
        sql: vec![pg::equivalent_sql::letters(&plan.filter)],
    };
    page
}

fn contents(ask: &PageRequest, plan: &LetterChangePlan) -> Markup {
    html! {
        ul.findings {
            @for note in &plan.notes { li { span.sign.look aria-hidden="true" { "▲" } (note) "." } }
            @for (why, number) in &plan.refused { li { span.sign.bad aria-hidden="true" { "✗" } (number) " left alone: " (why) "." } }
        }
        @if !plan.letters.is_empty() {
            h2 #groups-title { "Which" }
            ul.plain { @for (group, number) in plan.groups().into_iter().take(20) { li { b { (count(i128::try_from(number).unwrap_or(0))) } " × " (code(group)) } } }
            h2 #samples-title { "Such as" }
            ul.plain {
                @for letter in plan.letters.iter().take(SAMPLES) {
                    li {
                        a id=(format!("sample-{}", letter.id)) href=(ask.link("/failed/letter").with("id", letter.id.to_string())) { (code(&letter.key)) }
                        " · " (text(&letter.tenant)) " · " (text(&letter.consumer)) " " span.quiet { (text(letter.detail.as_deref().unwrap_or_default())) }
                    }
                }
            }
        }
    }
}

/// Returns the digest of a plan's letters.
fn digest_of(plan: &LetterChangePlan) -> String {
    digest(plan.letters.iter().map(|letter| (letter.tenant.as_str(), letter.id, letter.generation)))
}

fn order(ask: &PageRequest, asked: &ChangeRequest, plan: &LetterChangePlan) -> Markup {
    let number = plan.letters.len();
    html! {
        h2 #order-title { "Do it" }
        form.stacked method="post" action=(ask.app.access.site().path("/failed/operate")) {
            (csrf(&ask.visitor))
            (asked.fields())
            input type="hidden" name="digest" value=(digest_of(plan));
            label for="note" { "Why, for the record" }
            input #note type="text" name="note" maxlength="1000" required;
            @if asked.change == Change::Requeue {
                label for="rate" { "Messages per second, at most" }
                input #rate type="number" name="rate" value=(RATE) min="1" max=(FASTEST);
            }
            label for="typed" { "Type " (number) " to confirm" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            button.strong { @match asked.change { Change::Requeue => "Requeue ", Change::Discard => "Discard " } (number) }
        }
    }
}

/// Begins the confirmed operation: with the letters that were shown, and the number that was typed.
pub(super) async fn operate(ask: PageRequest) -> PageResult {
    let (asked, plan) = planned(&ask).await?;
    let Some(plan) = plan else { return Ok(PageReply::undone(too_many(&ask, &asked))) };
    let number = plan.letters.len();
    let wrong = |said: &str| Ok(PageReply::undone(plan_page(&ask, &asked, &plan, Some(said))));
    let Some(reason) = ask.parameters.word("note") else { return wrong("A reason is required.") };
    if number == 0 {
        return wrong("There is nothing to do any more.");
    }
    if ask.parameters.word("typed") != Some(number.to_string().as_str()) {
        return wrong(&format!("Nothing was changed: there are {number} now; type that number to confirm."));
    }
    if ask.parameters.word("digest") != Some(digest_of(&plan).as_str()) {
        return wrong(
            "Nothing was changed: these are other letters than the plan showed. Look at them again.",
        );
    }
    let rate = match asked.change {
        Change::Requeue => {
            ask.parameters.word("rate").and_then(|text| text.parse().ok()).unwrap_or(RATE).clamp(1, FASTEST)
        }
        Change::Discard => FASTEST,
    };
    let order = Order {
        plan: plan.clone(),
        actor: ask.visitor.session.user.actor(),
        reason: Some(reason.to_owned()),
        rate: Some(rate),
        // Only the command line requeues a letter that is older than keys and trail remember.
        overrides: Overrides::default(),
        application: "oncely console",
    };
    let Some(operation) = ask.app.operations.begin(&ask.app.config, order) else {
        return wrong(&format!(
            "Nothing was changed: {MOST_AT_ONCE} operations are under way in this console. Wait for one, or stop one."
        ));
    };
    Ok(PageReply::SeeOther(ask.link("/failed/operation").with("id", operation.id.to_string())))
}
