//! The conformance suite: the requirements of every lease store, case by case. Feature `testing`.
//!
//! ```no_run
//! # use oncely::lease::conformance::{self, Clock};
//! # use oncely::lease::LeaseStore;
//! # async fn test(store: impl LeaseStore, clock: impl Clock) {
//! let broken = conformance::all(&store, &clock).await;
//! assert!(broken.is_empty(), "{broken:#?}");
//! // A thousand random histories of twenty calls each, compared with a store in memory.
//! conformance::histories(&store, &clock, 1, 1_000, 20).await.unwrap();
//! # }
//! ```
//!
//! A case is named by the requirement. The cases use keys of their own, so the store need not be empty. They run one after the other,
//! because they share the clock.

mod bounds;
mod claims;
mod endings;
mod fences;
mod histories;
mod repeats;
mod steps;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

pub use histories::histories;

use super::claim::{Claim, ClaimOutcome, Grant, fingerprint};
use super::error::StoreError;
use super::lease_id::{BegunStep, Failure, LeaseId, RefusedCall, RenewOutcome};
use super::memory::MemoryClock;
use super::store::LeaseStore;
use crate::step::{Repeat, Step};
use oncely_core::identity::{Identity, IdentityPart};
use oncely_core::reason::Reason;

/// The time of a store: its server's clock, set ahead, or all its stored times, set back.
pub trait Clock: Sync {
    /// Makes this much time pass for everything that the store holds.
    fn advance(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl Clock for MemoryClock {
    async fn advance(&self, time: Duration) {
        Self::advance(self, time);
    }
}

/// A failed case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCase {
    /// The name of the case, one of [`CASES`].
    pub case: &'static str,
    /// The observed behaviour.
    pub what: String,
}

impl fmt::Display for FailedCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.what)
    }
}

/// The observed behaviour.
#[derive(Debug)]
struct ObservedBehaviour(String);

impl From<StoreError> for ObservedBehaviour {
    fn from(error: StoreError) -> Self {
        Self(format!("an error: {error}"))
    }
}

type Case = Result<(), ObservedBehaviour>;

/// Fails the case unless both values are equal.
macro_rules! same {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) if left == right => {}
            (left, right) => {
                return Err($crate::conformance::ObservedBehaviour(format!(
                    "{} is {left:?} instead of {right:?}",
                    stringify!($left)
                )));
            }
        }
    };
}

/// Fails the case unless the value matches the pattern.
macro_rules! fits {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => {
                return Err($crate::conformance::ObservedBehaviour(format!(
                    "{} is {other:?} instead of {}",
                    stringify!($value),
                    stringify!($pattern)
                )));
            }
        }
    };
}

use fits;
use same;

const LEASE: Duration = Duration::from_secs(30);
const MAX_RUN: Duration = Duration::from_secs(600);
const RETENTION: Duration = Duration::from_secs(7 * 86_400);
const SECOND: Duration = Duration::from_secs(1);
const PAYLOAD: &[u8] = b"{\"amount\":20}";

const CHARGE: Step = Step::new("charge", Repeat::Always);

/// The context of the cases.
struct CaseContext<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    tenant: String,
    keys: AtomicU64,
}

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    /// Returns an unused key.
    fn key(&self) -> Result<Identity, ObservedBehaviour> {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        identity(&self.tenant, "payments", &format!("order {number}"))
    }

    async fn claim(&self, identity: &Identity, owner: &str) -> Result<ClaimOutcome, StoreError> {
        self.store.claim(&claim(identity, owner)).await
    }

    /// Claims a key; fails the case unless the claim is granted.
    async fn claim_granted(
        &self,
        identity: &Identity,
        owner: &str,
    ) -> Result<(Grant, LeaseId), ObservedBehaviour> {
        match self.claim(identity, owner).await? {
            ClaimOutcome::Granted(grant) => {
                Ok((grant, LeaseId { identity: identity.clone(), token: grant.token }))
            }
            other => Err(ObservedBehaviour(format!("a claim is {other:?} instead of granted"))),
        }
    }

    /// Claims an unused key and returns its lease.
    async fn claim_new(&self) -> Result<LeaseId, ObservedBehaviour> {
        Ok(self.claim_granted(&self.key()?, "first").await?.1)
    }

    /// Advances the store's clock until the lease has run out.
    async fn expire_lease(&self) {
        self.advance(LEASE + self.store.facts().clock.grace() + SECOND).await;
    }

    /// Returns the maximum difference between two answers of an estimated clock.
    fn slack(&self) -> Duration {
        self.store.facts().clock.grace()
    }

    /// Advances the store's clock.
    async fn advance(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    /// Claims an unused key, lets its lease run out and claims it for another owner; returns the old lease and the new one.
    async fn take_over_new(&self) -> Result<(LeaseId, LeaseId), ObservedBehaviour> {
        let old = self.claim_new().await?;
        self.expire_lease().await;
        let (grant, new) = self.claim_granted(&old.identity, "second").await?;
        same!((grant.is_takeover, grant.token > old.token), (true, true));
        Ok((old, new))
    }

    async fn begin(&self, held: &LeaseId, step: &Step) -> Result<BegunStep, StoreError> {
        self.store.begin_step(held, step, Uuid::new_v4(), LEASE).await
    }

    async fn renew(&self, held: &LeaseId) -> Result<RenewOutcome, ObservedBehaviour> {
        match self.store.renew(std::slice::from_ref(held), LEASE).await?.as_slice() {
            [one] => Ok(*one),
            others => Err(ObservedBehaviour(format!("one renewal has {} answers", others.len()))),
        }
    }

    /// Checks that this lease still holds the key and nothing else has changed.
    async fn assert_held_by(&self, held: &LeaseId) -> Case {
        fits!(self.renew(held).await?, RenewOutcome::Until(_));
        Ok(())
    }
}

fn identity(tenant: &str, consumer: &str, key: &str) -> Result<Identity, ObservedBehaviour> {
    let part = |text: &str| {
        IdentityPart::new(text.as_bytes()).map_err(|error| ObservedBehaviour(format!("{text:?} {error}")))
    };
    Ok(Identity { tenant: part(tenant)?, consumer: part(consumer)?, key: part(key)? })
}

fn claim<'a>(identity: &'a Identity, owner: &'a str) -> Claim<'a> {
    Claim {
        identity,
        fingerprint: fingerprint(PAYLOAD),
        owner,
        lease: LEASE,
        max_run: MAX_RUN,
        retention: RETENTION,
        max_crashes: 3,
    }
}

fn failure(delay: Duration, max_attempts: u32, reason: Option<Reason>) -> Failure<'static> {
    Failure { error: "the provider does not answer", reason, max_attempts, delay }
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

macro_rules! cases {
    ($($module:ident { $($case:ident)* })*) => {
        /// The names of all cases.
        pub const CASES: &[&str] = &[$($(stringify!($case)),*),*];

        /// Runs all cases, one after the other, and returns those that fail.
        pub async fn all<S: LeaseStore, C: Clock>(store: &S, clock: &C) -> Vec<FailedCase> {
            let tenant = format!("conformance {}", Uuid::new_v4());
            let trial = CaseContext { store, clock, tenant, keys: AtomicU64::new(0) };
            let mut broken = Vec::new();
            $($(
                // Boxed, so that the futures of the cases don't add up on the stack.
                if let Err(ObservedBehaviour(what)) = Box::pin(trial.$case()).await {
                    broken.push(FailedCase { case: stringify!($case), what });
                }
            )*)*
            broken
        }
    };
}

cases! {
    claims {
        a_fresh_key_is_granted
        one_of_64_claimants_wins
        a_held_key_is_in_flight_for_the_rest_of_its_lease
        a_claim_that_is_said_again_is_granted_again
        a_lease_that_has_run_out_is_taken_over
        one_of_16_takeovers_wins
        a_renewed_lease_is_not_taken_over
        no_renewal_goes_beyond_the_run
        a_renewal_shortens_no_lease
        many_leases_are_renewed_at_once_and_told_apart
        another_payload_is_a_conflict_in_every_state
        tenants_consumers_and_keys_are_apart
        any_text_is_a_key
        tokens_only_grow
        runs_without_a_word_are_counted_and_given_up
        a_reported_failure_forgives_the_runs_before
        nobody_holds_an_unknown_key
    }
    fences {
        a_late_finish_without_a_takeover_stands
        a_frozen_holder_cannot_complete
        a_frozen_holder_cannot_fail
        a_frozen_holder_cannot_release
        a_frozen_holder_cannot_renew
        a_frozen_holder_cannot_begin_a_step
        a_frozen_holder_decides_nothing_about_a_call_of_another_run
        a_finished_run_says_nothing_more
        a_token_of_another_key_is_worth_nothing
    }
    endings {
        a_completed_key_answers_with_its_response
        no_response_and_null_are_two_things
        a_completion_that_is_said_again_is_done
        a_completed_key_outlives_its_lease
        a_failed_run_waits_for_its_delay_and_runs_again
        a_failure_that_is_said_again_counts_once
        attempts_are_used_up
        a_reason_gives_up_at_once_and_for_good
        a_failure_of_a_completed_run_changes_nothing
        a_released_key_is_free_at_once_and_nothing_is_counted
        a_release_that_is_said_again_is_one
        what_is_known_of_a_key_is_told
    }
    steps {
        a_stored_result_is_not_called_again
        a_result_outlives_failure_release_and_takeover
        a_beginning_that_is_said_again_is_one
        a_step_begins_only_in_the_time_of_its_run
        a_refused_step_begins_in_the_next_round
        a_refusal_that_is_said_again_is_one
        a_result_that_is_said_again_is_stored_and_another_one_is_not
        what_has_not_begun_has_no_result
        step_keys_are_those_of_every_language
        a_step_renews_the_lease
        a_key_has_a_hundred_steps
    }
    repeats {
        always_is_repeated_by_the_same_key
        within_is_repeated_in_its_window_and_not_after_it
        never_and_ask_are_not_repeated
        the_stricter_of_two_rules_counts
        a_refused_repetition_says_nothing_of_the_first_call
        an_answered_question_begins_the_next_round
        a_late_result_is_the_result_of_its_step
        a_step_that_began_without_a_call_begins_again
        a_late_refusal_begins_the_next_round
        a_late_outcome_ends_the_run_that_was_told_that_it_is_unknown
    }
    bounds {
        what_is_too_large_is_refused_and_what_just_fits_is_kept
        times_and_counts_out_of_bounds_are_refused
        names_out_of_bounds_are_refused
        json_comes_back_as_it_was
    }
}
