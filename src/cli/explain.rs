//! `oncely explain KEY`: everything that is known about a key, in words.

use std::path::Path;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::output::{self, Times, age, safe};
use super::{completions, session};
use crate::config::Config;
use crate::decide::KeyStatus;
use crate::exit;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentityPart};
use crate::mirror::{Mirror, TagKey};
use crate::pg::{self, AuditFilter, AuditRow, KeyDetails, LetterFilter, LetterRow, Session};
use crate::reason::Reason;

#[derive(Debug, Args)]
#[command(after_help = "Exit 1 where nothing is known. Without --tenant the audit trail finds the tenants.")]
pub(super) struct Arguments {
    /// The key, exactly
    key: String,
    /// Whose message
    #[arg(long)]
    tenant: Option<String>,
    /// Of which consumer
    #[arg(long, add = ArgValueCompleter::new(completions::consumers))]
    consumer: Option<String>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Longest timeline shown.
const TIMELINE: i64 = 200;

/// What is asked for.
pub(super) struct Asked<'a> {
    pub(super) key: &'a str,
    pub(super) tenant: Option<&'a str>,
    pub(super) consumer: Option<&'a str>,
}

/// All that is known of a key, as JSON, an object for each identity.
pub(super) async fn facts(
    config: &Config,
    session: &mut Session,
    asked: &Asked<'_>,
) -> anyhow::Result<Vec<Value>> {
    Ok(stories(config, session, asked).await?.iter().map(as_json).collect())
}

/// One identity, and all that is known of it.
struct Story {
    tenant: String,
    consumer: String,
    details: Option<KeyDetails>,
    /// Oldest first.
    timeline: Vec<AuditRow>,
    letters: Vec<LetterRow>,
    mirrored: Option<bool>,
    protected_until: Option<DateTime<Utc>>,
}

pub(super) async fn run(file: &Path, arguments: Arguments, times: Times) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    let mut session = session::open(&config).await?;
    let asked = Asked {
        key: &arguments.key,
        tenant: arguments.tenant.as_deref(),
        consumer: arguments.consumer.as_deref(),
    };
    let stories = stories(&config, &mut session, &asked).await?;
    let now = session.clock.now();
    let span = pg::audit_span(&mut session.connection).await?;
    session.close().await;
    if arguments.json {
        let stories: Vec<_> = stories.iter().map(as_json).collect();
        output::print_json(
            "oncely.explain/1",
            json!({ "key": arguments.key, "audit_since": span, "identities": stories }),
        )?;
    } else if stories.is_empty() {
        let key = safe(&arguments.key);
        output::print(&match span {
            Some(since) => format!(
                "{key}: nothing is known. It was not seen since {}, when the audit trail begins; \
                 or it came before that and was collected, or it is not decided yet: in a queue, or held by a worker that \
                 waits for something (see its log).",
                times.show(since)
            ),
            None => {
                format!("{key}: nothing is known; the audit trail is empty, so no message was decided yet.")
            }
        })?;
    } else {
        let texts: Vec<String> = stories
            .iter()
            .map(|story| describe(story, &arguments.key, config.audit.duplicates, now, times))
            .collect();
        output::print(&texts.join("\n\n"))?;
    }
    Ok(if stories.is_empty() { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

async fn stories(config: &Config, session: &mut Session, asked: &Asked<'_>) -> anyhow::Result<Vec<Story>> {
    let connection = &mut session.connection;
    let Asked { key, tenant, consumer } = *asked;
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let details = pg::key_details(connection, key, tenant, consumer).await?;
    let filter = AuditFilter {
        tenant: owned(tenant),
        consumer: owned(consumer),
        key: owned(Some(key)),
        limit: TIMELINE,
        ..AuditFilter::default()
    };
    let mut rows = pg::audit_list(connection, &filter).await?;
    rows.reverse();
    let letters = LetterFilter {
        tenant: owned(tenant),
        consumer: owned(consumer),
        key: owned(Some(key)),
        limit: TIMELINE,
        ..LetterFilter::default()
    };
    let mut letters = pg::letters(connection, &letters).await?;
    letters.reverse();
    let mut identities: Vec<(String, String)> = details
        .iter()
        .map(|d| (d.tenant.clone(), d.consumer.clone()))
        .chain(rows.iter().map(|r| (r.tenant.clone(), r.consumer.clone())))
        .collect();
    identities.sort();
    identities.dedup();
    let known = pg::known_consumers(connection).await?;
    let mut stories = Vec::new();
    for (tenant, consumer) in identities {
        let details = details.iter().find(|d| d.tenant == tenant && d.consumer == consumer).cloned();
        let timeline: Vec<AuditRow> =
            rows.iter().filter(|r| r.tenant == tenant && r.consumer == consumer).cloned().collect();
        let settings = known.iter().find(|known| known.consumer == consumer);
        let protected_until = match (&details, settings) {
            (Some(KeyDetails { completed_at: Some(_), expires_at: Some(at), .. }), _) => Some(*at),
            (Some(d), Some(settings)) => {
                let age = chrono::Duration::from_std(settings.retention).ok();
                d.completed_at.zip(age).and_then(|(at, age)| at.checked_add_signed(age))
            }
            _ => None,
        };
        let mirrored = match &details {
            Some(details) => mirrored(config, session, details).await,
            None => None,
        };
        let letters: Vec<LetterRow> =
            letters.iter().filter(|l| l.tenant == tenant && l.consumer == consumer).cloned().collect();
        stories.push(Story { tenant, consumer, details, timeline, letters, mirrored, protected_until });
    }
    Ok(stories)
}

/// Does the mirror hold the key now? `None` where that can't be said.
async fn mirrored(config: &Config, session: &mut Session, details: &KeyDetails) -> Option<bool> {
    let settings = config.mirror.as_ref()?;
    let secret = match &settings.key {
        Some(key) => key.expose_secret().as_bytes().to_vec(),
        None => pg::secret(&mut session.connection).await.ok()?,
    };
    let part = |text: &str| IdentityPart::new(text.as_bytes()).ok();
    let identity = Identity {
        tenant: part(&details.tenant)?,
        consumer: part(&details.consumer)?,
        key: part(&details.key)?,
    };
    let fingerprint = details.fingerprint.as_deref().and_then(Fingerprint::from_stored);
    let key = TagKey::derive(&secret);
    let tag = key.tag(&session.cell.epoch, &identity, fingerprint.as_ref());
    let found = Mirror::new(settings).ok()?.holds(&key, &tag, session.clock.now()).await.ok()?;
    Some(found)
}

fn describe(story: &Story, key: &str, listed: bool, now: DateTime<Utc>, times: Times) -> String {
    let head = format!("{} · tenant {} · key {}", safe(&story.consumer), safe(&story.tenant), safe(key));
    let mut lines = vec![head, format!("  {}", verdict(story))];
    if let Some(details) = &story.details {
        if let Some(at) = details.completed_at {
            let what = match details.status == KeyStatus::Failed.as_str() {
                true => "given up",
                false if details.reason.is_some() => "refused",
                false => "effect",
            };
            let duration =
                story.timeline.iter().rev().find(|row| row.outcome == "completed").and_then(|row| {
                    Some(format!(", worker {}, {:.1} ms", safe(&row.worker), millis(row.duration_us?)))
                });
            lines.push(format!(
                "  {what:<11}{} ({} ago){}",
                times.show(at),
                age(at, now),
                duration.unwrap_or_default()
            ));
        }
        if let Some(fingerprint) = &details.fingerprint {
            // Four bytes name the policy, except where a client passed SHA-256 of the body.
            let digest = fingerprint.iter().skip(if fingerprint.len() == 32 { 0 } else { 4 });
            let hex: String = digest.take(8).map(|byte| format!("{byte:02x}")).collect();
            lines.push(format!("  payload    SHA-256 {hex}…"));
        }
        if let Some(response) = &details.response {
            let compact = serde_json::from_str::<serde_json::Value>(response).map(|value| value.to_string());
            lines.push(format!("  response   {}", safe(compact.as_deref().unwrap_or(response))));
        }
        if let Some(error) = &details.last_error {
            lines.push(format!("  last error {}", safe(error)));
        }
        lines.push(match story.protected_until {
            Some(until) if until > now => format!("  dedupe     protected until {}", times.show(until)),
            Some(until) => {
                format!("  dedupe     retention ended {}; collected at the next run of gc", times.show(until))
            }
            None if details.completed_at.is_some() => {
                "  dedupe     no worker has started with this consumer on this database, so its keys are kept"
                    .to_owned()
            }
            None => "  dedupe     not completed: the next delivery runs".to_owned(),
        });
        if let Some(mirrored) = story.mirrored {
            let text =
                if mirrored { "present, of this epoch" } else { "not there: PostgreSQL answers for it" };
            lines.push(format!("  mirror     {text}"));
        }
    }
    for (index, told) in folded(&story.timeline).into_iter().enumerate() {
        let label = if index == 0 { "timeline" } else { "" };
        lines.push(format!("  {label:<11}{}  {}", times.show(told.first.occurred_at), told.text(times)));
    }
    for (index, letter) in story.letters.iter().enumerate() {
        let label = if index == 0 { "letters" } else { "" };
        lines.push(format!("  {label:<11}{}", told_letter(letter, times)));
    }
    if !listed && story.timeline.iter().all(|row| row.outcome != "duplicate") {
        lines.push("             (duplicates are listed only where audit.duplicates = true)".to_owned());
    }
    lines.join("\n")
}

fn verdict(story: &Story) -> String {
    let conflicts = story.timeline.iter().filter(|row| row.reason.as_deref() == Some("key_conflict")).count();
    let conflict = match conflicts {
        0 => String::new(),
        count => format!(" {count} message(s) came with this key and ANOTHER payload."),
    };
    let main = match story.details.as_ref().map(|d| (d.status.as_str(), d)) {
        Some(("COMPLETED", d)) if d.reason.as_deref() == Some("refused") => {
            "REFUSED: the handler said no, and that is the answer: a duplicate gets it again, and does not run.".to_owned()
        }
        Some(("FAILED", d)) if d.reason.as_deref() == Some(Reason::Parked.as_str()) => {
            "PARKED: set aside by hand. A later delivery is dead-lettered, not run, until it is requeued.".to_owned()
        }
        Some(("COMPLETED", _)) => "COMPLETED: it took effect, once.".to_owned(),
        Some(("FAILED", d)) => format!(
            "FAILED: given up after {} attempt(s), reason {}. A later delivery is dead-lettered, not run.",
            d.attempts,
            safe(d.reason.as_deref().unwrap_or("unknown"))
        ),
        Some((_, d)) => {
            format!("IN_PROGRESS: {} attempt(s) failed; it runs again when it comes back.", d.attempts)
        }
        None => match story.timeline.iter().find(|row| ["completed", "refused"].contains(&row.outcome.as_str())) {
            Some(row) if row.outcome == "refused" => {
                "The handler refused it, and its key has been collected since: a duplicate that came now would run.".to_owned()
            }
            Some(_) => {
                "It took effect, and its key has been collected since: a duplicate that came now would run."
                    .to_owned()
            }
            None => "It did not take effect.".to_owned(),
        },
    };
    main + &conflict
}

/// Decisions in a row that say the same.
struct Folded<'a> {
    first: &'a AuditRow,
    last: &'a AuditRow,
    count: usize,
}

fn folded(rows: &[AuditRow]) -> Vec<Folded<'_>> {
    let same = |a: &AuditRow, b: &AuditRow| {
        (&a.outcome, a.attempt, &a.reason, &a.detail, &a.queue, &a.worker)
            == (&b.outcome, b.attempt, &b.reason, &b.detail, &b.queue, &b.worker)
    };
    rows.chunk_by(same)
        .filter_map(|chunk| Some(Folded { first: chunk.first()?, last: chunk.last()?, count: chunk.len() }))
        .collect()
}

impl Folded<'_> {
    fn text(&self, times: Times) -> String {
        match self.count {
            1 => match &self.first.trace_id {
                Some(trace) => format!("{}  trace {}", event(self.first), safe(trace)),
                None => event(self.first),
            },
            count => format!("{count} × {}, until {}", event(self.first), times.show(self.last.occurred_at)),
        }
    }
}

/// What became of a dead letter of the key.
fn told_letter(letter: &LetterRow, times: Times) -> String {
    let mut text = format!("{}  {}: {}", letter.id, letter.reason, letter.state);
    text.push_str(&format!(" since {}", times.show(letter.updated_at)));
    if letter.generation > 1 {
        text.push_str(&format!(", came back {} time(s) after a requeue", letter.generation - 1));
    }
    if letter.times > 1 {
        text.push_str(&format!(", dead-lettered {} times", letter.times));
    }
    text
}

fn event(row: &AuditRow) -> String {
    let mut text = row.outcome.clone();
    if row.attempt > 0 {
        text.push_str(&format!(", attempt {}", row.attempt));
    }
    if let Some(reason) = &row.reason {
        text.push_str(&match row.outcome.as_str() {
            "duplicate" => format!(", not run: {} knew it", safe(reason)),
            _ => format!(", {}", safe(reason)),
        });
    }
    if let Some(detail) = &row.detail {
        text.push_str(&format!(": {}", safe(detail)));
    }
    // The worker is a name that somebody gave himself; the login is who it was.
    let login = row.login.as_deref().map(|login| format!(", login {}", safe(login))).unwrap_or_default();
    format!("{text}  (queue {}, worker {}{login})", safe(&row.queue), safe(&row.worker))
}

fn millis(micros: i64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // shown with one decimal
    let millis = micros as f64 / 1_000.0;
    millis
}

fn as_json(story: &Story) -> Value {
    json!({
        "tenant": story.tenant, "consumer": story.consumer, "verdict": verdict(story), "key": story.details,
        "protected_until": story.protected_until, "mirrored": story.mirrored, "timeline": story.timeline,
        "letters": story.letters,
    })
}
