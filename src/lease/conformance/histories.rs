//! Random histories of one key each, beside a store in memory: every answer must be the same.

use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use uuid::Uuid;

use super::{Clock, LEASE, PAYLOAD, SECOND, claim, failure, identity};
use crate::handler::lease::{Repeat, Step};
use crate::identity::Identity;
use crate::lease::claim::{Claim, Claimed, fingerprint};
use crate::lease::error::StoreError;
use crate::lease::held::{Held, Renewed};
use crate::lease::memory::{MemoryClock, MemoryStore};
use crate::lease::store::LeaseStore;
use crate::reason::Reason;

/// A call, with all that is random in it. Leases are known by their place in the order in which they were granted.
#[derive(Clone, Debug)]
enum Call {
    Claim { owner: u8, other_payload: bool },
    Renew { lease: usize },
    Begin { lease: usize, step: &'static str, repeat: Repeat, call: u128 },
    Checkpoint { lease: usize, step: &'static str, result: u8 },
    Refuse { lease: usize, step: &'static str, round: u32 },
    Complete { lease: usize, response: Option<u8> },
    Fail { lease: usize, delay: Duration, reason: Option<Reason> },
    Release { lease: usize },
    LookUp,
    Pass(Duration),
}

impl Call {
    fn random(rng: &mut Rng, leases: usize) -> Self {
        if leases == 0 {
            return Self::Claim { owner: rng.u8(..4), other_payload: false };
        }
        // Mostly the last one.
        let lease = if rng.u8(..4) == 0 { rng.usize(..leases) } else { leases - 1 };
        let step = if rng.bool() { "charge" } else { "mail" };
        match rng.u8(..20) {
            0..=4 => Self::Claim { owner: rng.u8(..4), other_payload: rng.u8(..16) == 0 },
            5 => Self::Renew { lease },
            6..=9 => {
                let rules =
                    [Repeat::Always, Repeat::Within(Duration::from_secs(100)), Repeat::Ask, Repeat::Never];
                Self::Begin { lease, step, repeat: rules[rng.usize(..4)], call: rng.u128(1..4) }
            }
            10 | 11 => Self::Checkpoint { lease, step, result: rng.u8(..2) },
            12 => Self::Refuse { lease, step, round: rng.u32(..3) },
            13 => Self::Complete { lease, response: rng.bool().then(|| rng.u8(..2)) },
            14 | 15 => {
                let reason = (rng.u8(..8) == 0).then_some(Reason::OutcomeUnknown);
                Self::Fail { lease, delay: SECOND * 7 * rng.u32(..2), reason }
            }
            16 => Self::Release { lease },
            17 => Self::LookUp,
            _ => Self::Pass(SECOND * [7, 31, 31, 101, 601][rng.usize(..5)]),
        }
    }
}

impl Call {
    /// Returns whether the call tells the outcome of a run. Where the key was given up as `outcome_unknown`, a store may take the word of the
    /// run that made the call in question ([`PostgresStore`](crate::lease::PostgresStore) does), so these are not compared.
    fn is_result(&self) -> bool {
        matches!(self, Self::Checkpoint { .. } | Self::Refuse { .. } | Self::Complete { .. })
    }
}

/// What is compared of an answer.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    left: Duration,
}

impl Answer {
    fn is(&self, other: &Self) -> bool {
        self.text == other.text && self.left.abs_diff(other.left) < 2 * SECOND
    }
}

impl<T: std::fmt::Debug> From<Result<T, StoreError>> for Answer {
    fn from(answer: Result<T, StoreError>) -> Self {
        let text = match answer {
            Ok(answer) => format!("{answer:?}"),
            Err(StoreError::Lost) => "lost".to_owned(),
            Err(StoreError::Refused(_)) => "refused".to_owned(),
            Err(error) => format!("an error: {error}"),
        };
        Self { text, left: Duration::ZERO }
    }
}

/// A store and the leases that it has granted.
struct Side<'a, S> {
    store: &'a S,
    key: &'a Identity,
    tokens: Vec<i64>,
}

impl<S: LeaseStore> Side<'_, S> {
    async fn say(&mut self, call: &Call) -> Answer {
        let held = |place: usize| Held { identity: self.key.clone(), token: self.tokens[place] };
        match *call {
            Call::Claim { owner, other_payload } => return self.claim(owner, other_payload).await,
            Call::Renew { lease } => match self.store.renew(&[held(lease)], LEASE).await.as_deref() {
                Ok([Renewed::Until(left)]) => Answer { text: "renewed".to_owned(), left: *left },
                Ok([Renewed::Lost]) => Answer { text: "lost".to_owned(), left: Duration::ZERO },
                other => Answer { text: format!("{other:?}"), left: Duration::ZERO },
            },
            Call::Begin { lease, step, repeat, call } => {
                let step = Step::new(step, repeat);
                self.store.begin_step(&held(lease), &step, Uuid::from_u128(call), LEASE).await.into()
            }
            Call::Checkpoint { lease, step, result } => {
                self.store.checkpoint(&held(lease), step, &json!({ "n": result }), LEASE).await.into()
            }
            Call::Refuse { lease, step, round } => {
                self.store.refuse_step(&held(lease), step, round, LEASE).await.into()
            }
            Call::Complete { lease, response } => {
                let response = response.map(|number| json!([number]));
                self.store.complete(&held(lease), response.as_ref()).await.into()
            }
            Call::Fail { lease, delay, reason } => {
                self.store.fail(&held(lease), &failure(delay, 3, reason)).await.into()
            }
            Call::Release { lease } => self.store.release(&held(lease)).await.into(),
            Call::LookUp => {
                let known = self.store.look_up(self.key).await;
                let place = |token| self.tokens.iter().position(|known| *known == token);
                // A run that was given up by a claim has a number that nobody was told.
                known
                    .map(|known| {
                        known.map(|known| (place(known.token), super::super::Known { token: 0, ..known }))
                    })
                    .into()
            }
            Call::Pass(_) => Answer::default(),
        }
    }

    /// Returns whether the key was given up because its outcome is not known.
    async fn is_unknown(&self) -> bool {
        let known = self.store.look_up(self.key).await;
        known.is_ok_and(|known| known.is_some_and(|known| known.reason == Some(Reason::OutcomeUnknown)))
    }

    async fn claim(&mut self, owner: u8, other_payload: bool) -> Answer {
        let owner = format!("owner {owner}");
        let payload = if other_payload { b"another" } else { PAYLOAD };
        let asked = Claim { fingerprint: fingerprint(payload), ..claim(self.key, &owner) };
        match self.store.claim(&asked).await {
            Ok(Claimed::Granted(grant)) => {
                let place = self.tokens.iter().position(|token| *token == grant.token).unwrap_or_else(|| {
                    self.tokens.push(grant.token);
                    self.tokens.len() - 1
                });
                let grows = self.tokens.is_sorted();
                let text = format!(
                    "granted as {place}: attempt {}, takeover {}, grows {grows}",
                    grant.attempt, grant.is_takeover
                );
                Answer { text, left: Duration::ZERO }
            }
            Ok(Claimed::InFlight(left)) => Answer { text: "in flight".to_owned(), left },
            Ok(Claimed::Wait(left)) => Answer { text: "wait".to_owned(), left },
            Ok(Claimed::GivenUp { reason, .. }) => {
                Answer { text: format!("given up: {reason}"), left: Duration::ZERO }
            }
            other => other.into(),
        }
    }
}

/// Tries `count` random histories of `length` calls, each of a key of its own, and returns the first in which the store answers otherwise than
/// a store in memory does. The seed makes them the same again.
///
/// # Errors
/// The history up to the answer that differs, and both answers.
pub async fn histories<S: LeaseStore, C: Clock>(
    store: &S,
    clock: &C,
    seed: u64,
    count: u64,
    length: usize,
) -> Result<(), String> {
    let run = Uuid::new_v4();
    for number in 0..count {
        let mut rng = Rng::with_seed(seed.wrapping_add(number));
        let key = identity(&format!("histories {run}"), "payments", &format!("order {number}"))
            .map_err(|seen| seen.0)?;
        let model_clock = MemoryClock::default();
        let model_store = MemoryStore::in_memory(model_clock.clone());
        let mut model = Side { store: &model_store, key: &key, tokens: Vec::new() };
        let mut real = Side { store, key: &key, tokens: Vec::new() };
        let mut said = Vec::new();
        for _ in 0..length {
            let call = Call::random(&mut rng, model.tokens.len());
            if call.is_result() && model.is_unknown().await {
                continue;
            }
            if let Call::Pass(time) = call {
                clock.advance(time).await;
                model_clock.advance(time);
            }
            let (expected, seen) = (model.say(&call).await, real.say(&call).await);
            let differs = !seen.is(&expected);
            said.push(format!("{call:?}: {}", expected.text));
            if differs {
                let seed = seed.wrapping_add(number);
                return Err(format!(
                    "seed {seed}: {seen:?} instead of {expected:?} after\n{}",
                    said.join("\n")
                ));
            }
        }
    }
    Ok(())
}
