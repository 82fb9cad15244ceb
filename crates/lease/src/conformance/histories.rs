//! Random histories of one key each, compared with a store in memory: every answer must be the same.

use std::time::Duration;

use fastrand::Rng;
use serde_json::json;
use uuid::Uuid;

use super::{Clock, LEASE, PAYLOAD, SECOND, claim, failure, identity};
use crate::claim::{Claim, ClaimOutcome, fingerprint};
use crate::error::StoreError;
use crate::lease_id::{LeaseId, RefusedCall, RenewOutcome};
use crate::memory::{MemoryClock, MemoryStore};
use crate::step::{Repeat, Step};
use crate::store::LeaseStore;
use oncely_core::identity::Identity;
use oncely_core::reason::Reason;

/// A call with its random arguments. Leases are identified by the order in which they were granted.
#[derive(Clone, Debug)]
enum HistoryCall {
    Claim { owner: u8, other_payload: bool },
    Renew { lease: usize },
    Begin { lease: usize, step: &'static str, repeat: Repeat, call: u128 },
    Checkpoint { lease: usize, step: &'static str, result: u8 },
    Refuse { lease: usize, step: &'static str, refused: RefusedCall },
    Complete { lease: usize, response: Option<u8> },
    Fail { lease: usize, delay: Duration, reason: Option<Reason> },
    Release { lease: usize },
    LookUp,
    Pass(Duration),
}

impl HistoryCall {
    fn random(rng: &mut Rng, leases: usize) -> Self {
        if leases == 0 {
            return Self::Claim { owner: rng.u8(..4), other_payload: false };
        }
        // Usually the last one.
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
            12 => {
                let (round, call) = (rng.u32(..3), Uuid::from_u128(rng.u128(1..4)));
                let refused = if rng.bool() { RefusedCall::Round(round) } else { RefusedCall::Begun(call) };
                Self::Refuse { lease, step, refused }
            }
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

impl HistoryCall {
    /// Returns whether the call completes the key. For one given up as `outcome_unknown`, a store may accept it from the run that made the
    /// call in question ([`PostgresStore`](crate::PostgresStore) does), so it is not compared.
    fn is_completion(&self) -> bool {
        matches!(self, Self::Complete { .. })
    }
}

/// The compared parts of an answer.
#[derive(Debug, Default)]
struct ComparedAnswer {
    text: String,
    left: Duration,
}

impl ComparedAnswer {
    /// Returns whether two answers are equal, up to the time left.
    fn is_same_as(&self, other: &Self) -> bool {
        self.text == other.text && self.left.abs_diff(other.left) < 2 * SECOND
    }
}

impl<T: std::fmt::Debug> From<Result<T, StoreError>> for ComparedAnswer {
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
struct ComparedStore<'a, S> {
    store: &'a S,
    key: &'a Identity,
    tokens: Vec<i64>,
}

impl<S: LeaseStore> ComparedStore<'_, S> {
    /// Sends a call to the store; returns the compared parts of the answer.
    async fn send(&mut self, call: &HistoryCall) -> ComparedAnswer {
        let held = |place: usize| LeaseId { identity: self.key.clone(), token: self.tokens[place] };
        match *call {
            HistoryCall::Claim { owner, other_payload } => return self.claim(owner, other_payload).await,
            HistoryCall::Renew { lease } => match self.store.renew(&[held(lease)], LEASE).await.as_deref() {
                Ok([RenewOutcome::Until(left)]) => ComparedAnswer { text: "renewed".to_owned(), left: *left },
                Ok([RenewOutcome::Lost]) => ComparedAnswer { text: "lost".to_owned(), left: Duration::ZERO },
                other => ComparedAnswer { text: format!("{other:?}"), left: Duration::ZERO },
            },
            HistoryCall::Begin { lease, step, repeat, call } => {
                let step = Step::new(step, repeat);
                self.store.begin_step(&held(lease), &step, Uuid::from_u128(call), LEASE).await.into()
            }
            HistoryCall::Checkpoint { lease, step, result } => {
                self.store.checkpoint(&held(lease), step, &json!({ "n": result }), LEASE).await.into()
            }
            HistoryCall::Refuse { lease, step, refused } => {
                self.store.refuse_step(&held(lease), step, refused, LEASE).await.into()
            }
            HistoryCall::Complete { lease, response } => {
                let response = response.map(|number| json!([number]));
                self.store.complete(&held(lease), response.as_ref()).await.into()
            }
            HistoryCall::Fail { lease, delay, reason } => {
                self.store.fail(&held(lease), &failure(delay, 3, reason)).await.into()
            }
            HistoryCall::Release { lease } => self.store.release(&held(lease)).await.into(),
            HistoryCall::LookUp => {
                let snapshot = self.store.look_up(self.key).await;
                let place = |token| self.tokens.iter().position(|known| *known == token);
                // A run given up by a claim has a number that was never returned.
                snapshot
                    .map(|snapshot| {
                        snapshot.map(|snapshot| {
                            (place(snapshot.token), super::super::KeySnapshot { token: 0, ..snapshot })
                        })
                    })
                    .into()
            }
            HistoryCall::Pass(_) => ComparedAnswer::default(),
        }
    }

    /// Returns whether the key was given up because its outcome is unknown, by the store.
    async fn is_unknown(&self) -> bool {
        let known = self.store.look_up(self.key).await;
        known.is_ok_and(|known| known.is_some_and(|known| known.reason == Some(Reason::OutcomeUnknown)))
    }

    async fn claim(&mut self, owner: u8, other_payload: bool) -> ComparedAnswer {
        let owner = format!("owner {owner}");
        let payload = if other_payload { b"another" } else { PAYLOAD };
        let request = Claim { fingerprint: fingerprint(payload), ..claim(self.key, &owner) };
        match self.store.claim(&request).await {
            Ok(ClaimOutcome::Granted(grant)) => {
                let place = self.tokens.iter().position(|token| *token == grant.token).unwrap_or_else(|| {
                    self.tokens.push(grant.token);
                    self.tokens.len() - 1
                });
                let grows = self.tokens.is_sorted();
                let text = format!(
                    "granted as {place}: attempt {}, takeover {}, grows {grows}",
                    grant.attempt, grant.is_takeover
                );
                ComparedAnswer { text, left: Duration::ZERO }
            }
            Ok(ClaimOutcome::InFlight(left)) => ComparedAnswer { text: "in flight".to_owned(), left },
            Ok(ClaimOutcome::Wait(left)) => ComparedAnswer { text: "wait".to_owned(), left },
            Ok(ClaimOutcome::GivenUp { reason, .. }) => {
                ComparedAnswer { text: format!("given up: {reason}"), left: Duration::ZERO }
            }
            other => other.into(),
        }
    }
}

/// Runs `count` random histories of `length` calls, each on a key of its own, and fails at the first answer that differs from that of a
/// store in memory. The same seed gives the same histories.
///
/// # Errors
/// If answers differ: the history up to the first one that does, and both answers.
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
            .map_err(|answer| answer.0)?;
        let model_clock = MemoryClock::default();
        let model_store = MemoryStore::in_memory(model_clock.clone());
        let mut model = ComparedStore { store: &model_store, key: &key, tokens: Vec::new() };
        let mut real = ComparedStore { store, key: &key, tokens: Vec::new() };
        let mut calls = Vec::new();
        for _ in 0..length {
            let call = HistoryCall::random(&mut rng, model.tokens.len());
            if call.is_completion() && model.is_unknown().await {
                continue;
            }
            if let HistoryCall::Pass(time) = call {
                clock.advance(time).await;
                model_clock.advance(time);
            }
            let (expected, answer) = (model.send(&call).await, real.send(&call).await);
            let differs = !answer.is_same_as(&expected);
            calls.push(format!("{call:?}: {}", expected.text));
            if differs {
                let seed = seed.wrapping_add(number);
                return Err(format!(
                    "seed {seed}: {answer:?} instead of {expected:?} after\n{}",
                    calls.join("\n")
                ));
            }
        }
    }
    Ok(())
}
