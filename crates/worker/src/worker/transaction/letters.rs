//! Writes the rows of dead letters, in the transaction of the decision.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use crate::worker::candidate::{Candidate, MAX_KEPT_BYTES, PartialIdentity, text_or_empty};
use crate::worker::interrupt::Interrupt;
use crate::worker::shared::ConsumerContext;
use oncely_amqp::{Delivery, header, store_headers, store_properties, strip_own_headers};
use oncely_core::encryption::{Place, StoredValue};
use oncely_core::fault::{Fault, FaultClass};
use oncely_core::fingerprint::Fingerprint;
use oncely_core::identity::Identity;
use oncely_core::letter::{Letter, failure_group, letter_id};
use oncely_core::outcome::Outcome;
use oncely_core::own_headers;
use oncely_core::signing::SignatureError;
use oncely_failpoint::step;
use oncely_postgres::{self as pg, DeadLetter};

/// A delivery and its decision.
pub(crate) struct GivenUpDelivery<'a> {
    pub(crate) delivery: &'a Delivery,
    pub(crate) identity: PartialIdentity,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Receives the letter's name.
    pub(crate) outcome: &'a mut Outcome,
}

impl<'a> GivenUpDelivery<'a> {
    pub(crate) fn new(candidate: &'a Candidate, outcome: &'a mut Outcome) -> Self {
        Self {
            delivery: &candidate.delivery,
            identity: PartialIdentity::from(&candidate.identity),
            fingerprint: candidate.fingerprint,
            outcome,
        }
    }
}

/// Writes a row for each delivery that is dead-lettered, and names the row in its outcome; skips the others. `interrupt` classifies errors.
pub(crate) async fn keep_letters(
    shared: &ConsumerContext,
    transaction: &mut PgConnection,
    now: DateTime<Utc>,
    interrupt: fn(sqlx::Error) -> Interrupt,
    given_up_deliveries: Vec<GivenUpDelivery<'_>>,
) -> Result<(), Interrupt> {
    let mut letters: Vec<DeadLetter> = Vec::new();
    let mut positions: HashMap<Uuid, usize> = HashMap::new();
    let mut letter_slots = Vec::new();
    let mut bytes = 0;
    for given_up in given_up_deliveries {
        bytes += given_up.delivery.size();
        let Some(row) = build_row(shared, &given_up) else { continue };
        let Outcome::DeadLettered { letter, .. } = given_up.outcome else { continue };
        letter_slots.push((letter, row.id));
        // Byte-identical messages of one batch are one letter: a statement can't write a row twice.
        match positions.entry(row.id) {
            Entry::Occupied(entry) => letters[*entry.get()].times += 1,
            Entry::Vacant(free) => {
                free.insert(letters.len());
                letters.push(row);
            }
        }
    }
    if letters.is_empty() {
        return Ok(());
    }
    step("worker.letter.before");
    let (consumer, quota) = (&shared.consumer.name, shared.letter_quota);
    let written = pg::store_letters(transaction, consumer, &shared.worker, now, quota, &letters).await;
    let written: HashMap<Uuid, Letter> =
        written.map_err(interrupt)?.into_iter().map(|(_, letter)| (letter.id, letter)).collect();
    step("worker.letter.after");
    if bytes > MAX_KEPT_BYTES {
        transaction.shrink_buffers();
    }
    for (letter, id) in letter_slots {
        let Some(found) = written.get(&id) else {
            let text = format!("{} dead letters were written instead of {}", written.len(), letters.len());
            return Err(Interrupt::Failed(Fault::new(FaultClass::Transient, None, text)));
        };
        *letter = Some(*found);
    }
    Ok(())
}

/// Reads the id of the dead letter that a message was before; `None` if it carries no mark of a letter. An error means that the mark is
/// invalid.
fn read_former_letter(
    shared: &ConsumerContext,
    delivery: &Delivery,
    tenant: &str,
) -> Result<Option<Uuid>, SignatureError> {
    let headers = delivery.properties.headers().as_ref();
    let (letter, mark) = (header(headers, own_headers::LETTER), header(headers, own_headers::LETTER_MARK));
    let letter = shared.keys.current().signing.read_mark(letter, mark, tenant, &delivery.message.body)?;
    Ok(letter.map(|letter| letter.id))
}

/// Converts a letter's body to its stored form, encrypted if that is configured. If the body is left out, returns `None` and the reason.
fn seal_body(
    shared: &ConsumerContext,
    given_up: &GivenUpDelivery<'_>,
    letter: Uuid,
) -> (Option<StoredValue>, Option<&'static str>) {
    let GivenUpDelivery { delivery, identity, .. } = given_up;
    let message = &delivery.message;
    if message.body.len() > shared.stored_body {
        return (None, Some("max_body"));
    }
    let place = Place::LetterBody {
        tenant: text_or_empty(identity.tenant.as_ref()),
        consumer: shared.consumer.name.as_str(),
        key: text_or_empty(identity.key.as_ref()),
        queue: &message.queue,
        letter,
    };
    match StoredValue::seal(shared.cipher.as_ref(), &place, &message.body) {
        Ok(stored) => (Some(stored), None),
        // Never stored unencrypted: the queue has it.
        Err(error) => {
            tracing::error!(%letter, %error, "body of a dead letter not stored: encryption failed");
            (None, Some("cipher"))
        }
    }
}

/// Builds the row of a given-up message's letter; `None` for another outcome.
fn build_row(shared: &ConsumerContext, given_up: &GivenUpDelivery<'_>) -> Option<DeadLetter> {
    let Outcome::DeadLettered { attempt, rejection, code, .. } = &*given_up.outcome else {
        return None;
    };
    let GivenUpDelivery { delivery, identity, .. } = given_up;
    let message = &delivery.message;
    let mut detail = rejection.detail.clone();
    let id = match (&identity.tenant, &identity.key) {
        (Some(tenant), Some(key)) => {
            let consumer = shared.consumer.name.clone();
            letter_id(&Identity { tenant: tenant.clone(), consumer, key: key.clone() }, &message.body)
        }
        // Two equal messages without a name are two messages, unless one was requeued.
        _ => match read_former_letter(shared, delivery, text_or_empty(identity.tenant.as_ref())) {
            Ok(id) => id.unwrap_or_else(Uuid::now_v7),
            Err(error) => {
                detail.push_str(&format!(
                    "; if it is a requeued dead letter, this is a new row: its mark {error}"
                ));
                Uuid::now_v7()
            }
        },
    };
    let mut properties = delivery.properties.clone();
    if let Some(user_id) = &message.properties.user_id {
        // A retried copy carries its original's user, signed.
        properties = properties.with_user_id(user_id.as_str().into());
    }
    let stored = match delivery.properties.headers() {
        Some(headers) => store_headers(&strip_own_headers(headers)).map(Some),
        None => Some(None),
    };
    let (tenant, key) = (text_or_empty(identity.tenant.as_ref()), text_or_empty(identity.key.as_ref()));
    let (body, omitted) = match &stored {
        None => (None, Some("headers")),
        Some(_) => seal_body(shared, given_up, id),
    };
    let remove_nul = |text: &str| text.replace('\0', "\u{fffd}");
    Some(DeadLetter {
        tenant: tenant.to_owned(),
        id,
        key: key.to_owned(),
        reason: rejection.reason.as_str(),
        error_code: code.clone(),
        detail: remove_nul(&detail),
        attempt: *attempt,
        queue: message.queue.clone(),
        trace_id: message.trace_id().map(str::to_owned),
        times: 1,
        failure_group: failure_group(rejection.reason, code.as_deref(), &rejection.detail),
        exchange: remove_nul(&message.exchange),
        routing_key: remove_nul(&message.routing_key),
        fingerprint: given_up.fingerprint.map(|print| print.0.to_vec()),
        properties: store_properties(&properties),
        headers: stored.flatten(),
        body,
        body_size: message.body.len(),
        omitted,
    })
}
