//! All known facts about a key: for `oncely explain`, and the console's page of it.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use oncely_config::Config;
use oncely_core::encryption::Cipher;
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::reason::Reason;
use oncely_core::shown;
use oncely_core::units::format_count;
use oncely_mirror::{Mirror, read_tag_keys};
use oncely_postgres::{
    self as pg, AuditFilter, AuditRow, KeyContents, KeyDetails, LetterFilter, LetterRow, Session,
};

/// Maximum number of rows of the timeline.
const MAX_TIMELINE_ROWS: i64 = 200;
/// Time limit of the mirror's answer, which is not worth a longer wait.
const MIRROR_TIMEOUT: Duration = Duration::from_secs(2);

/// An identity with all known facts.
pub struct KeyStory {
    pub tenant: String,
    pub consumer: String,
    pub details: Option<KeyDetails>,
    /// Reason why the handler's data can't be decrypted.
    pub unreadable: Option<String>,
    /// Oldest first.
    pub timeline: Vec<AuditRow>,
    pub letters: Vec<LetterRow>,
    /// Whether the mirror has it; `None` if unknown.
    pub mirrored: Option<bool>,
    /// Time until which a duplicate is recognised.
    pub protected_until: Option<DateTime<Utc>>,
}

/// Reads the stories of a key, one for each tenant and consumer that has it. Queries the mirror, too.
///
/// # Errors
/// If a query fails. A mirror that does not answer is ignored.
pub async fn read_stories(
    config: &Config,
    session: &mut Session,
    key: &str,
    tenant: Option<&str>,
    consumer: Option<&str>,
) -> Result<Vec<KeyStory>, sqlx::Error> {
    let connection = &mut session.connection;
    let mut details = pg::read_key_details(connection, key, tenant, consumer).await?;
    let unreadable: Vec<Option<String>> =
        details.iter_mut().map(|details| decrypt_details(details, config.cipher())).collect();
    let (rows, letters) = read_trails(connection, key, tenant, consumer).await?;
    let mut identities: Vec<(String, String)> = details
        .iter()
        .map(|d| (d.tenant.clone(), d.consumer.clone()))
        .chain(rows.iter().map(|r| (r.tenant.clone(), r.consumer.clone())))
        .collect();
    identities.sort();
    identities.dedup();
    let now = session.clock.now();
    let mut tenants: Vec<String> = identities.iter().map(|(tenant, _)| tenant.clone()).collect();
    tenants.dedup();
    let retentions = pg::list_retentions(&mut session.connection, now, &tenants).await?;
    let mut stories = Vec::new();
    for (tenant, consumer) in identities {
        let known = details.iter().zip(&unreadable);
        let (details, unreadable) =
            match known.into_iter().find(|(d, _)| d.tenant == tenant && d.consumer == consumer) {
                Some((details, unreadable)) => (Some(details.clone()), unreadable.clone()),
                None => (None, None),
            };
        let timeline: Vec<AuditRow> =
            rows.iter().filter(|r| r.tenant == tenant && r.consumer == consumer).cloned().collect();
        let retention = retentions.get(&(tenant.clone(), consumer.clone())).copied();
        let protected_until = details.as_ref().and_then(|details| compute_protection_end(details, retention));
        let mirrored = match &details {
            Some(details) => query_mirror(config, session, details).await,
            None => None,
        };
        let letters: Vec<LetterRow> =
            letters.iter().filter(|l| l.tenant == tenant && l.consumer == consumer).cloned().collect();
        stories.push(KeyStory {
            tenant,
            consumer,
            details,
            unreadable,
            timeline,
            letters,
            mirrored,
            protected_until,
        });
    }
    Ok(stories)
}

/// Reads a key's rows of the trail and its letters, the oldest first.
async fn read_trails(
    connection: &mut PgConnection,
    key: &str,
    tenant: Option<&str>,
    consumer: Option<&str>,
) -> Result<(Vec<AuditRow>, Vec<LetterRow>), sqlx::Error> {
    let (tenant, consumer) = (tenant.map(str::to_owned), consumer.map(str::to_owned));
    let filter = AuditFilter {
        tenant: tenant.clone(),
        consumer: consumer.clone(),
        key: Some(key.to_owned()),
        limit: MAX_TIMELINE_ROWS,
        ..AuditFilter::default()
    };
    let mut rows = pg::list_audit(connection, &filter).await?;
    rows.reverse();
    let filter = LetterFilter {
        tenant,
        consumer,
        key: Some(key.to_owned()),
        limit: MAX_TIMELINE_ROWS,
        ..LetterFilter::default()
    };
    let mut letters = pg::list_letters(connection, &filter).await?;
    letters.reverse();
    Ok((rows, letters))
}

/// Computes the time until which a duplicate of a key is recognised: the key's own end, or that of its consumer's retention. `None` if the
/// key is not completed, or its retention is unknown.
fn compute_protection_end(details: &KeyDetails, retention: Option<Duration>) -> Option<DateTime<Utc>> {
    match (details.completed_at, details.expires_at) {
        (Some(_), Some(at)) => Some(at),
        (completed_at, _) => {
            let age = chrono::Duration::from_std(retention?).ok();
            completed_at.zip(age).and_then(|(at, age)| at.checked_add_signed(age))
        }
    }
}

/// Decrypts the handler's data in the details of a key. Data that can't be decrypted stay encrypted: returns the reason, or `None` if all
/// are decrypted.
fn decrypt_details(details: &mut KeyDetails, cipher: Option<&Arc<dyn Cipher>>) -> Option<String> {
    let mut contents = KeyContents {
        response: details.response.take(),
        steps: details.steps.take(),
        ..KeyContents::default()
    };
    let unreadable = contents.decrypt(cipher, &details.tenant, &details.consumer, &details.key);
    (details.response, details.steps) = (contents.response, contents.steps);
    unreadable
}

/// Queries whether the mirror has the key now; `None` without a mirror, or without an answer within [`MIRROR_TIMEOUT`].
async fn query_mirror(config: &Config, session: &mut Session, details: &KeyDetails) -> Option<bool> {
    let settings = config.mirror.as_ref()?;
    let (key, _) = read_tag_keys(config, &mut session.connection).await.ok()?;
    let part = |text: &str| IdentityPart::new(text.as_bytes()).ok();
    let identity = Identity {
        tenant: part(&details.tenant)?,
        consumer: part(&details.consumer)?,
        key: part(&details.key)?,
    };
    let fingerprint = details.fingerprint.as_deref().and_then(Fingerprint::from_stored);
    let tag = key.tag(&session.cell.epoch, &identity, fingerprint.as_ref());
    let mirror = Mirror::new(settings).ok()?;
    tokio::time::timeout(MIRROR_TIMEOUT, mirror.has_tag(&key, &tag, session.clock.now())).await.ok()?.ok()
}

/// Escapes control characters of a text for display.
fn escape(text: &str) -> String {
    shown::escape_value(text).into_owned()
}

/// Formats the conclusion about a key: whether it took effect, and the treatment of later deliveries.
pub fn format_conclusion(story: &KeyStory) -> String {
    let conflicts = story.timeline.iter().filter(|row| row.reason.as_deref() == Some("key_conflict")).count();
    let conflict = match conflicts {
        0 => String::new(),
        count => format!(" {} came with this key and ANOTHER payload.", format_count(count, "message")),
    };
    let is_observed = story.timeline.iter().any(|row| row.outcome == "observed");
    let main = match story.details.as_ref().map(|d| (d.status.as_str(), d)) {
        _ if is_observed => "OBSERVED: nothing ran; the key stays new for the consumer that takes over.".to_owned(),
        Some(("COMPLETED", d)) if d.reason.as_deref() == Some("refused") => {
            "REFUSED: the handler said no, and that is the answer: a duplicate gets it again, and does not run.".to_owned()
        }
        Some(("FAILED", d)) if d.reason.as_deref() == Some(Reason::Parked.as_str()) => {
            "PARKED: set aside by hand. A later delivery is dead-lettered, not run, until it is requeued.".to_owned()
        }
        Some(("COMPLETED", _)) => "COMPLETED: it took effect, once.".to_owned(),
        Some(("FAILED", d)) if d.reason.as_deref() == Some(Reason::OutcomeUnknown.as_str()) => format!(
            "FAILED: given up after {}, reason outcome_unknown: it may have taken effect, and does not run until it is \
             settled (oncely keys settle).",
            format_count(d.attempts, "attempt")
        ),
        Some(("FAILED", d)) => format!(
            "FAILED: given up after {}, reason {}. A later delivery is dead-lettered, not run.",
            format_count(d.attempts, "attempt"),
            escape(d.reason.as_deref().unwrap_or("unknown"))
        ),
        Some((_, d)) => {
            format!("IN_PROGRESS: {} failed; it runs again when it comes back.", format_count(d.attempts, "attempt"))
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

/// Consecutive equal decisions.
pub struct RepeatedDecision<'a> {
    pub first: &'a AuditRow,
    pub last: &'a AuditRow,
    pub count: usize,
}

/// Merges consecutive equal decisions of a timeline.
pub fn fold_decisions(rows: &[AuditRow]) -> Vec<RepeatedDecision<'_>> {
    let same = |a: &AuditRow, b: &AuditRow| {
        (&a.outcome, a.attempt, &a.reason, &a.detail, &a.queue, &a.worker)
            == (&b.outcome, b.attempt, &b.reason, &b.detail, &b.queue, &b.worker)
    };
    rows.chunk_by(same)
        .filter_map(|chunk| {
            Some(RepeatedDecision { first: chunk.first()?, last: chunk.last()?, count: chunk.len() })
        })
        .collect()
}

/// Formats a decision of the trail as one line.
pub fn format_decision(row: &AuditRow) -> String {
    let mut text = row.outcome.clone();
    if row.attempt > 0 {
        text.push_str(&format!(", attempt {}", row.attempt));
    }
    if let Some(reason) = &row.reason {
        text.push_str(&match row.outcome.as_str() {
            "duplicate" => format!(", not run: {} knew it", escape(reason)),
            _ => format!(", {}", escape(reason)),
        });
    }
    if let Some(detail) = &row.detail {
        text.push_str(&format!(": {}", escape(detail)));
    }
    // The worker's name is self-declared; the login is authenticated.
    let login = row.login.as_deref().map(|login| format!(", login {}", escape(login))).unwrap_or_default();
    format!("{text}  (queue {}, worker {}{login})", escape(&row.queue), escape(&row.worker))
}
