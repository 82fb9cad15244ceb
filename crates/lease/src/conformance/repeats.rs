//! Cases: the repetition of calls that may have happened.

use super::{
    CHARGE, Case, CaseContext, Clock, Duration, LEASE, LeaseId, LeaseStore, ObservedBehaviour, Reason,
    RefusedCall, RenewOutcome, Repeat, SECOND, Step, StoreError, failure, fits, same, text,
};
use uuid::Uuid;

use crate::lease_id::{FailOutcome, StepState};

const NEVER_REPEATED: Step = Step::new("call", Repeat::Never);

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    /// Begins the step in a run that then crashes; returns the lease of the next run.
    async fn begin_and_crash(&self, step: &Step) -> Result<LeaseId, ObservedBehaviour> {
        let held = self.claim_new().await?;
        same!(self.begin(&held, step).await?.state, StepState::Run);
        self.expire_lease().await;
        Ok(self.claim_granted(&held.identity, "second").await?.1)
    }

    pub(super) async fn always_is_repeated_by_the_same_key(&self) -> Case {
        let step = Step::new("charge", Repeat::Always);
        let held = self.claim_new().await?;
        let first = self.begin(&held, &step).await?;
        self.expire_lease().await;
        let (_, held) = self.claim_granted(&held.identity, "second").await?;
        for _ in 0..2 {
            let again = self.begin(&held, &step).await?;
            same!((&again.state, again.call_key, again.round), (&StepState::Repeat, first.call_key, 0));
        }
        self.store.checkpoint(&held, "charge", &text("ch_1"), LEASE).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Done(text("ch_1")));
        Ok(())
    }

    pub(super) async fn within_is_repeated_in_its_window_and_not_after_it(&self) -> Case {
        let step = Step::new("charge", Repeat::Within(Duration::from_secs(100)));
        let held = self.begin_and_crash(&step).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Repeat);
        // Counted from the first call, less a tenth: a repetition does not extend it.
        self.advance(95 * SECOND - LEASE).await;
        let (_, held) = self.claim_granted(&held.identity, "third").await?;
        same!(self.begin(&held, &step).await?.state, StepState::Unknown);
        Ok(())
    }

    pub(super) async fn never_and_ask_are_not_repeated(&self) -> Case {
        for repeat in [Repeat::Never, Repeat::Ask] {
            let step = Step::new("mail", repeat);
            let held = self.begin_and_crash(&step).await?;
            for _ in 0..2 {
                same!((repeat, self.begin(&held, &step).await?.state), (repeat, StepState::Unknown));
            }
            // The other side was asked and confirmed that it happened.
            self.store.checkpoint(&held, "mail", &text("sent"), LEASE).await?;
            same!(self.begin(&held, &step).await?.state, StepState::Done(text("sent")));
        }
        Ok(())
    }

    pub(super) async fn the_stricter_of_two_rules_counts(&self) -> Case {
        let short = Repeat::Within(SECOND);
        for (then, now) in [
            (Repeat::Never, Repeat::Always),
            (Repeat::Always, Repeat::Never),
            (short, Repeat::Always),
            (Repeat::Always, short),
            (Repeat::Ask, Repeat::Within(100 * LEASE)),
        ] {
            let held = self.begin_and_crash(&Step::new("charge", then)).await?;
            let state = self.begin(&held, &Step::new("charge", now)).await?.state;
            same!((then, now, state), (then, now, StepState::Unknown));
        }
        Ok(())
    }

    pub(super) async fn a_refused_repetition_says_nothing_of_the_first_call(&self) -> Case {
        let step = Step::new("charge", Repeat::Always);
        let held = self.begin_and_crash(&step).await?;
        let again = self.begin(&held, &step).await?;
        same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(again.round), LEASE).await?, 0);
        // Nor do refusals by later runs, nor a repeated one.
        let mut held = held;
        for owner in ["third", "fourth"] {
            same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(again.round), LEASE).await?, 0);
            let failed = self.store.fail(&held, &failure(Duration::ZERO, 9, None)).await?;
            fits!(failed, FailOutcome::Retry { .. });
            held = self.claim_granted(&held.identity, owner).await?.1;
            let repeated = self.begin(&held, &step).await?;
            same!((repeated.state, repeated.call_key), (StepState::Repeat, again.call_key));
            same!(
                self.store.refuse_step(&held, "charge", RefusedCall::Round(repeated.round), LEASE).await?,
                0
            );
        }
        // The first call certainly happened: its answer was found.
        self.store.checkpoint(&held, "charge", &text("ch_1"), LEASE).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Done(text("ch_1")));
        Ok(())
    }

    pub(super) async fn an_answered_question_begins_the_next_round(&self) -> Case {
        let step = Step::new("mail", Repeat::Ask);
        let held = self.begin_and_crash(&step).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Unknown);
        // The other side does not know the call.
        same!(self.store.refuse_step(&held, "mail", RefusedCall::Round(0), LEASE).await?, 1);
        let again = self.begin(&held, &step).await?;
        same!((again.state, again.round), (StepState::Run, 1));
        Ok(())
    }

    /// Begins a step in a run and brings its key into each state in which it may be when the outcome becomes known.
    async fn begin_in_doubt(&self, state: usize) -> Result<LeaseId, ObservedBehaviour> {
        let old = self.claim_new().await?;
        self.begin(&old, &NEVER_REPEATED).await?;
        match state {
            0 => same!(self.store.release(&old).await?, true),
            1 => fits!(
                self.store.fail(&old, &failure(Duration::ZERO, 9, None)).await?,
                FailOutcome::Retry { .. }
            ),
            _ => {
                self.expire_lease().await;
                let new = self.claim_granted(&old.identity, "second").await?.1;
                match state {
                    2 => same!(self.store.release(&new).await?, true),
                    3 => {
                        same!(self.begin(&new, &NEVER_REPEATED).await?.state, StepState::Unknown);
                        let given_up = failure(Duration::ZERO, 9, Some(Reason::OutcomeUnknown));
                        fits!(self.store.fail(&new, &given_up).await?, FailOutcome::GivenUp { .. });
                    }
                    _ => same!(self.begin(&new, &CHARGE).await?.state, StepState::Run),
                }
            }
        }
        Ok(old)
    }

    /// Claims the key for the next run, or again for the run that holds it; returns the lease.
    async fn claim_next(&self, state: usize, old: &LeaseId) -> Result<LeaseId, ObservedBehaviour> {
        Ok(match state {
            // The same acquisition.
            4 => self.claim_granted(&old.identity, "second").await?.1,
            _ => self.claim_granted(&old.identity, "third").await?.1,
        })
    }

    pub(super) async fn a_late_result_is_the_result_of_its_step(&self) -> Case {
        for state in 0..5 {
            let old = self.begin_in_doubt(state).await?;
            // Repeated after a lost reply.
            for _ in 0..2 {
                self.store.checkpoint(&old, "call", &text("late"), LEASE).await?;
            }
            fits!(self.store.checkpoint(&old, "call", &text("other"), LEASE).await, Err(StoreError::Lost));
            let next = self.claim_next(state, &old).await?;
            same!(
                (state, self.begin(&next, &NEVER_REPEATED).await?.state),
                (state, StepState::Done(text("late")))
            );
            self.store.complete(&next, None).await?;
        }
        Ok(())
    }

    pub(super) async fn a_late_refusal_begins_the_next_round(&self) -> Case {
        for state in 0..5 {
            let old = self.begin_in_doubt(state).await?;
            fits!(
                self.store.refuse_step(&old, "call", RefusedCall::Round(7), LEASE).await,
                Err(StoreError::Lost)
            );
            for _ in 0..2 {
                same!(self.store.refuse_step(&old, "call", RefusedCall::Round(0), LEASE).await?, 1);
            }
            let next = self.claim_next(state, &old).await?;
            let begun = self.begin(&next, &NEVER_REPEATED).await?;
            same!((state, begun.state, begun.round), (state, StepState::Run, 1));
            self.store.checkpoint(&next, "call", &text("done"), LEASE).await?;
        }
        Ok(())
    }

    pub(super) async fn a_step_that_began_without_a_call_begins_again(&self) -> Case {
        let (call, other) = (Uuid::now_v7(), Uuid::now_v7());
        let held = self.claim_new().await?;
        let refuse = async |held: &LeaseId, call| {
            self.store.refuse_step(held, "call", RefusedCall::Begun(call), LEASE).await
        };
        // It never began, or has begun for another call.
        same!(refuse(&held, call).await?, 0);
        same!(self.store.begin_step(&held, &NEVER_REPEATED, call, LEASE).await?.state, StepState::Run);
        same!(refuse(&held, other).await?, 0);
        same!(self.begin(&held, &NEVER_REPEATED).await?.state, StepState::Unknown);
        // Repeated after a lost reply.
        for _ in 0..2 {
            same!(refuse(&held, call).await?, 1);
        }
        same!(self.store.begin_step(&held, &NEVER_REPEATED, other, LEASE).await?.round, 1);
        same!(refuse(&held, call).await?, 1);
        self.expire_lease().await;
        let (_, next) = self.claim_granted(&held.identity, "second").await?;
        same!(self.begin(&next, &NEVER_REPEATED).await?.state, StepState::Unknown);
        fits!(refuse(&held, call).await, Err(StoreError::Lost));
        for _ in 0..2 {
            same!(refuse(&held, other).await?, 2);
        }
        let (_, next) = self.claim_granted(&held.identity, "third").await?;
        let begun = self.begin(&next, &NEVER_REPEATED).await?;
        same!((begun.state, begun.round), (StepState::Run, 2));
        Ok(())
    }

    pub(super) async fn a_late_outcome_ends_the_run_that_was_told_that_it_is_unknown(&self) -> Case {
        let old = self.claim_new().await?;
        self.begin(&old, &NEVER_REPEATED).await?;
        self.expire_lease().await;
        let new = self.claim_granted(&old.identity, "second").await?.1;
        same!(self.begin(&new, &NEVER_REPEATED).await?.state, StepState::Unknown);
        self.store.checkpoint(&old, "call", &text("late"), LEASE).await?;
        same!(self.renew(&new).await?, RenewOutcome::Lost);
        let unknown = failure(Duration::ZERO, 1, Some(Reason::OutcomeUnknown));
        same!(self.store.fail(&new, &unknown).await?, FailOutcome::Retry { attempts: 0 });
        let (grant, third) = self.claim_granted(&old.identity, "third").await?;
        same!(
            (grant.attempt, self.begin(&third, &NEVER_REPEATED).await?.state),
            (1, StepState::Done(text("late")))
        );
        Ok(())
    }
}
