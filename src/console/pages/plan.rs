//! What a requeue or a discard would do; and the order to do it.

use chrono::{DateTime, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use super::super::ask::{Answer, Ask, Reply};
use super::super::digest::digest;
use super::super::error::PageError;
use super::super::html::{ago, code, count, text};
use super::super::operations::MOST_AT_ONCE;
use super::super::page::{Elsewhere, Page, Tab, csrf};
use super::failed::Wanted;
use crate::letters::{Change, Order, Overrides, Plan, requeue_refusal};
use crate::pg::{self, LetterFilter, Planned};
use crate::units::counted;

/// Letters of one operation, at most.
const MOST: i64 = 10_000;
/// Letters a second, where nobody says it, and at most.
const RATE: u32 = 50;
const FASTEST: u32 = 1_000;
/// Letters that a plan names.
const SAMPLES: usize = 5;

/// What somebody is about to do.
struct Asked {
    change: Change,
    wanted: Wanted,
    id: Option<Uuid>,
    /// What came later is not meant.
    until: DateTime<Utc>,
}

impl Asked {
    fn of(ask: &Ask, now: DateTime<Utc>) -> Result<Self, PageError> {
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
        Ok(Self { change, wanted: Wanted::of(ask), id, until: until.unwrap_or(now) })
    }

    fn filter(&self, now: DateTime<Utc>) -> Result<LetterFilter, PageError> {
        if let Some(id) = self.id {
            return Ok(LetterFilter { ids: Some(vec![id]), limit: MOST + 1, ..LetterFilter::default() });
        }
        let filter = self.wanted.filter(now, MOST + 1)?;
        // A state is the plan's matter: it takes those that are open.
        Ok(LetterFilter { until: Some(self.until), states: None, ..filter })
    }

    /// Are they chosen by what they are, and not only by where they came from and when?
    fn names_letters(&self) -> bool {
        self.id.is_some()
            || self.wanted.reason.is_some()
            || self.wanted.group.is_some()
            || self.wanted.key.is_some()
    }

    /// `None` where there are more letters than one operation takes: what is known of their keys is not asked then.
    async fn plan(
        &self,
        connection: &mut sqlx::PgConnection,
        now: DateTime<Utc>,
    ) -> Result<Option<Plan>, PageError> {
        if Plan::count(connection, self.change, &self.filter(now)?).await? > MOST {
            return Ok(None);
        }
        let named = self.names_letters();
        let refuse = |letter: &Planned| match self.change {
            Change::Requeue => requeue_refusal(letter, named, Overrides::default()),
            Change::Discard => None,
        };
        Ok(Some(Plan::make(connection, now, self.change, self.filter(now)?, refuse).await?))
    }

    /// The same wishes as fields of a form.
    fn fields(&self) -> Markup {
        let wanted = &self.wanted;
        let id = self.id.map(|id| id.to_string());
        let until = self.until.timestamp_micros().to_string();
        html! {
            @for (name, value) in [
                ("change", Some(self.change.verb())), ("id", id.as_deref()), ("until", Some(until.as_str())), ("since", wanted.since.as_deref()),
                ("tenant", wanted.tenant.as_deref()), ("consumer", wanted.consumer.as_deref()), ("reason", wanted.reason.as_deref()),
                ("group", wanted.group.as_deref()), ("key", wanted.key.as_deref()),
            ] {
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

/// The plan.
pub(super) async fn page(ask: Ask) -> Answer {
    let mut lease = ask.app.pool.lease().await?;
    if !lease.abilities.change_letters {
        let login = lease.abilities.login.clone();
        lease.give_back();
        return Err(refused(&login));
    }
    let now = lease.session.clock.now();
    let asked = Asked::of(&ask, now)?;
    let plan = asked.plan(&mut lease.session.connection, now).await?;
    lease.give_back();
    Ok(match plan {
        Some(plan) => shown(&ask, &asked, &plan, None),
        None => too_many(&ask, &asked),
    }
    .into())
}

/// More than one operation takes.
fn too_many(ask: &Ask, asked: &Asked) -> Page {
    let mut page = Page::new(Tab::Failed, asked.title());
    page.polls = false;
    page.above = html! {
        p.lead { "More than " (count(MOST)) " dead letters match: that is more than one operation takes." }
        p { "Narrow it down, by their time, reason or tenant: " a #narrow href=(asked.wanted.link(ask, "/failed/letters")) { "these letters" } "." }
    };
    page.elsewhere = Elsewhere { cli: vec![asked.command()], sql: Vec::new() };
    page
}

fn refused(login: &str) -> PageError {
    PageError::Refused(format!(
        "The console's login {login} may not change dead letters: that takes the role oncely_operator."
    ))
}

fn shown(ask: &Ask, asked: &Asked, plan: &Plan, said: Option<&str>) -> Page {
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
    page.elsewhere =
        Elsewhere { cli: vec![asked.command()], sql: vec![pg::equivalent_sql::letters(&plan.filter)] };
    page
}

fn contents(ask: &Ask, plan: &Plan) -> Markup {
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

/// Which letters a plan holds.
fn digest_of(plan: &Plan) -> String {
    digest(plan.letters.iter().map(|letter| (letter.tenant.as_str(), letter.id, letter.generation)))
}

fn order(ask: &Ask, asked: &Asked, plan: &Plan) -> Markup {
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
            label for="typed" { "Type " (number) " to go on" }
            input #typed type="text" name="typed" inputmode="numeric" autocomplete="off" required;
            button.strong { @match asked.change { Change::Requeue => "Requeue ", Change::Discard => "Discard " } (number) }
        }
    }
}

/// Begins what was agreed to: those letters, as many as were typed.
pub(super) async fn operate(ask: Ask) -> Answer {
    let mut lease = ask.app.pool.lease().await?;
    if !lease.abilities.change_letters {
        let login = lease.abilities.login.clone();
        lease.give_back();
        return Err(refused(&login));
    }
    let now = lease.session.clock.now();
    let asked = Asked::of(&ask, now)?;
    let plan = asked.plan(&mut lease.session.connection, now).await?;
    lease.give_back();
    let Some(plan) = plan else {
        let mut page = too_many(&ask, &asked);
        page.status = axum::http::StatusCode::UNPROCESSABLE_ENTITY;
        return Ok(page.into());
    };
    let number = plan.letters.len();
    let wrong = |said: &str| {
        let mut page = shown(&ask, &asked, &plan, Some(said));
        page.status = axum::http::StatusCode::UNPROCESSABLE_ENTITY;
        Ok(Reply::from(page))
    };
    let Some(reason) = ask.parameters.word("note") else { return wrong("Say why: it is recorded.") };
    if number == 0 {
        return wrong("There is nothing to do any more.");
    }
    if ask.parameters.word("typed") != Some(number.to_string().as_str()) {
        return wrong(&format!("Nothing was changed: there are {number} now, and that is to be typed."));
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
        actor: ask.visitor.session.person.actor(),
        reason: Some(reason.to_owned()),
        rate: Some(rate),
        // A letter whose effect cannot be known any more is requeued by the command line alone.
        overrides: Overrides::default(),
        application: "oncely console",
    };
    let Some(operation) = ask.app.operations.begin(&ask.app.config, order) else {
        return wrong(&format!(
            "Nothing was changed: {MOST_AT_ONCE} operations are under way in this console. Wait for one, or stop one."
        ));
    };
    Ok(Reply::SeeOther(ask.link("/failed/operation").with("id", operation.id.to_string())))
}
