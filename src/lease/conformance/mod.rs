//! What every lease store owes, case by case: for a store of yours. Feature `testing`.
//!
//! ```no_run
//! # use oncely::lease::conformance::{self, Clock};
//! # use oncely::lease::LeaseStore;
//! # async fn test(store: impl LeaseStore, clock: impl Clock) {
//! let broken = conformance::all(&store, &clock).await;
//! assert!(broken.is_empty(), "{broken:#?}");
//! // A thousand random histories, each of twenty calls, beside a store in memory.
//! conformance::histories(&store, &clock, 1, 1_000, 20).await.unwrap();
//! # }
//! ```
//!
//! A case is named by what holds. The cases use keys of their own, so the store need not be empty; they are one after the other, because the
//! clock is everybody's.

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

use super::claim::{Claim, Claimed, Grant, fingerprint};
use super::error::StoreError;
use super::held::{BegunStep, Failure, Held, Renewed};
use super::memory::MemoryClock;
use super::store::LeaseStore;
use crate::handler::lease::{Repeat, Step};
use crate::identity::{Identity, IdentityPart};
use crate::reason::Reason;

/// The time that passes for a store: its server's clock, set ahead, or all that it holds, set back.
pub trait Clock: Sync {
    /// Makes so much time pass for all that the store holds.
    fn advance(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl Clock for MemoryClock {
    async fn advance(&self, time: Duration) {
        Self::advance(self, time);
    }
}

/// A case that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its name, one of [`CASES`].
    pub case: &'static str,
    /// What was seen instead.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.case, self.what)
    }
}

/// What was seen instead.
#[derive(Debug)]
struct Seen(String);

impl From<StoreError> for Seen {
    fn from(error: StoreError) -> Self {
        Self(format!("an error: {error}"))
    }
}

type Case = Result<(), Seen>;

/// Ends a case that saw something else.
macro_rules! same {
    ($left:expr, $right:expr) => {
        match (&$left, &$right) {
            (left, right) if left == right => {}
            (left, right) => {
                return Err($crate::lease::conformance::Seen(format!(
                    "{} is {left:?} instead of {right:?}",
                    stringify!($left)
                )));
            }
        }
    };
}

/// Ends a case that saw something else.
macro_rules! fits {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => {
                return Err($crate::lease::conformance::Seen(format!(
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

/// What a case works with.
struct Trial<'a, S, C> {
    store: &'a S,
    clock: &'a C,
    tenant: String,
    keys: AtomicU64,
}

impl<S: LeaseStore, C: Clock> Trial<'_, S, C> {
    /// A key that nobody has used.
    fn key(&self) -> Result<Identity, Seen> {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        identity(&self.tenant, "payments", &format!("order {number}"))
    }

    async fn claim(&self, identity: &Identity, owner: &str) -> Result<Claimed, StoreError> {
        self.store.claim(&claim(identity, owner)).await
    }

    async fn granted(&self, identity: &Identity, owner: &str) -> Result<(Grant, Held), Seen> {
        match self.claim(identity, owner).await? {
            Claimed::Granted(grant) => Ok((grant, Held { identity: identity.clone(), token: grant.token })),
            other => Err(Seen(format!("a claim is {other:?} instead of granted"))),
        }
    }

    /// A fresh key that is held.
    async fn held(&self) -> Result<Held, Seen> {
        Ok(self.granted(&self.key()?, "first").await?.1)
    }

    /// Lets the lease run out, as the store counts.
    async fn run_out(&self) {
        self.pass(LEASE + self.store.facts().clock.grace() + SECOND).await;
    }

    /// How far two answers of an estimated clock may lie apart.
    fn slack(&self) -> Duration {
        self.store.facts().clock.grace()
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    /// A key that was held and is held by another run now: the old lease, and the new one.
    async fn taken_over(&self) -> Result<(Held, Held), Seen> {
        let old = self.held().await?;
        self.run_out().await;
        let (grant, new) = self.granted(&old.identity, "second").await?;
        same!((grant.is_takeover, grant.token > old.token), (true, true));
        Ok((old, new))
    }

    async fn begin(&self, held: &Held, step: &Step) -> Result<BegunStep, StoreError> {
        self.store.begin_step(held, step, Uuid::new_v4(), LEASE).await
    }

    async fn renew(&self, held: &Held) -> Result<Renewed, Seen> {
        match self.store.renew(std::slice::from_ref(held), LEASE).await?.as_slice() {
            [one] => Ok(*one),
            others => Err(Seen(format!("one renewal has {} answers", others.len()))),
        }
    }

    /// Still held by this lease, and nothing else has changed.
    async fn is_held_by(&self, held: &Held) -> Case {
        fits!(self.renew(held).await?, Renewed::Until(_));
        Ok(())
    }
}

fn identity(tenant: &str, consumer: &str, key: &str) -> Result<Identity, Seen> {
    let part =
        |text: &str| IdentityPart::new(text.as_bytes()).map_err(|error| Seen(format!("{text:?} {error}")));
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

        /// Tries every case, one after the other, and returns those that do not hold.
        pub async fn all<S: LeaseStore, C: Clock>(store: &S, clock: &C) -> Vec<Broken> {
            let tenant = format!("conformance {}", Uuid::new_v4());
            let trial = Trial { store, clock, tenant, keys: AtomicU64::new(0) };
            let mut broken = Vec::new();
            $($(
                // On the heap: one after the other, they need not fit into one another's space.
                if let Err(Seen(what)) = Box::pin($module::$case(&trial)).await {
                    broken.push(Broken { case: stringify!($case), what });
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
        a_frozen_holder_cannot_store_a_result
        a_frozen_holder_cannot_refuse_a_step
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
    }
    bounds {
        what_is_too_large_is_refused_and_what_just_fits_is_kept
        times_and_counts_out_of_bounds_are_refused
        names_out_of_bounds_are_refused
        json_comes_back_as_it_was
    }
}
