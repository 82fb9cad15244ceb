//! Cases: steps, the external calls of a run.

use serde_json::json;
use uuid::Uuid;

use super::{
    CHARGE, Case, CaseContext, ClaimOutcome, Clock, Duration, LEASE, LeaseStore, MAX_RUN, RefusedCall,
    Repeat, SECOND, Step, StoreError, failure, fits, same, text,
};
use crate::lease_id::{FailOutcome, StepState};
use crate::steps::step_key;

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    pub(super) async fn a_stored_result_is_not_called_again(&self) -> Case {
        let held = self.claim_new().await?;
        same!(self.begin(&held, &CHARGE).await?.state, StepState::Run);
        let result = json!({ "charge": "ch_1", "amount": 20 });
        self.store.checkpoint(&held, "charge", &result, LEASE).await?;
        same!(self.begin(&held, &CHARGE).await?.state, StepState::Done(result.clone()));
        let never = Step::new("charge", Repeat::Never);
        same!(self.begin(&held, &never).await?.state, StepState::Done(result));
        Ok(())
    }

    pub(super) async fn a_result_outlives_failure_release_and_takeover(&self) -> Case {
        let mut held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        self.store.checkpoint(&held, "charge", &text("ch_1"), LEASE).await?;
        for round in 0..3 {
            match round {
                0 => {
                    fits!(
                        self.store.fail(&held, &failure(Duration::ZERO, 9, None)).await?,
                        FailOutcome::Retry { .. }
                    )
                }
                1 => same!(self.store.release(&held).await?, true),
                _ => self.expire_lease().await,
            }
            held = self.claim_granted(&held.identity, &format!("next {round}")).await?.1;
            same!(self.begin(&held, &CHARGE).await?.state, StepState::Done(text("ch_1")));
        }
        Ok(())
    }

    pub(super) async fn a_beginning_that_is_said_again_is_one(&self) -> Case {
        let held = self.claim_new().await?;
        let never = Step::new("mail", Repeat::Never);
        let call = Uuid::new_v4();
        let first = self.store.begin_step(&held, &never, call, LEASE).await?;
        same!(first.state, StepState::Run);
        same!(self.store.begin_step(&held, &never, call, LEASE).await?, first);
        // Another call id is another call.
        same!(self.begin(&held, &never).await?.state, StepState::Unknown);
        Ok(())
    }

    pub(super) async fn a_step_begins_only_in_the_time_of_its_run(&self) -> Case {
        let held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        self.advance(MAX_RUN + SECOND + self.slack()).await;
        fits!(self.begin(&held, &CHARGE).await, Err(StoreError::Lost));
        // A result is stored all the same, until another run has taken the key over.
        self.store.checkpoint(&held, "charge", &text("late"), LEASE).await?;
        self.store.complete(&held, None).await?;
        same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(None));
        Ok(())
    }

    pub(super) async fn a_refused_step_begins_in_the_next_round(&self) -> Case {
        let held = self.claim_new().await?;
        let never = Step::new("charge", Repeat::Never);
        let first = self.begin(&held, &never).await?;
        same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(first.round), LEASE).await?, 1);
        let second = self.begin(&held, &never).await?;
        same!((&second.state, second.round, second.call_key != first.call_key), (&StepState::Run, 1, true));
        self.store.checkpoint(&held, "charge", &text("ch_2"), LEASE).await?;
        let done = self.begin(&held, &never).await?;
        same!((done.state, done.round), (StepState::Done(text("ch_2")), 1));
        Ok(())
    }

    pub(super) async fn a_refusal_that_is_said_again_is_one(&self) -> Case {
        let held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        for _ in 0..2 {
            same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await?, 1);
        }
        self.begin(&held, &CHARGE).await?;
        // A refusal of an earlier round does not refuse the current call.
        same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await?, 1);
        self.store.checkpoint(&held, "charge", &text("ch_2"), LEASE).await?;
        Ok(())
    }

    pub(super) async fn a_result_that_is_said_again_is_stored_and_another_one_is_not(&self) -> Case {
        let held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        for _ in 0..2 {
            self.store.checkpoint(&held, "charge", &json!({ "b": 1, "a": [1, 2] }), LEASE).await?;
        }
        fits!(
            self.store.checkpoint(&held, "charge", &text("another"), LEASE).await,
            Err(StoreError::Refused(_))
        );
        same!(self.begin(&held, &CHARGE).await?.state, StepState::Done(json!({ "a": [1, 2], "b": 1 })));
        Ok(())
    }

    pub(super) async fn what_has_not_begun_has_no_result(&self) -> Case {
        let held = self.claim_new().await?;
        fits!(self.store.checkpoint(&held, "charge", &text("x"), LEASE).await, Err(StoreError::Refused(_)));
        fits!(
            self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await,
            Err(StoreError::Refused(_))
        );
        self.begin(&held, &CHARGE).await?;
        self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await?;
        fits!(self.store.checkpoint(&held, "charge", &text("x"), LEASE).await, Err(StoreError::Refused(_)));
        same!(self.begin(&held, &CHARGE).await?.state, StepState::Run);
        Ok(())
    }

    pub(super) async fn step_keys_are_those_of_every_language(&self) -> Case {
        let held = self.claim_new().await?;
        for name in ["charge", "mail", "\u{e9}:|'\"{x}", "k"] {
            let step = Box::leak(name.to_owned().into_boxed_str());
            let step = Step::new(step, Repeat::Always);
            let begun = self.begin(&held, &step).await?;
            same!(begun.call_key, step_key(&held.identity, name, 0));
            self.store.refuse_step(&held, name, RefusedCall::Round(0), LEASE).await?;
            same!(self.begin(&held, &step).await?.call_key, step_key(&held.identity, name, 1));
        }
        Ok(())
    }

    pub(super) async fn a_step_renews_the_lease(&self) -> Case {
        let held = self.claim_new().await?;
        for round in 0..3 {
            self.advance(LEASE - 5 * SECOND).await;
            match round {
                0 => same!(self.begin(&held, &CHARGE).await?.state, StepState::Run),
                1 => same!(self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await?, 1),
                _ => {
                    self.begin(&held, &CHARGE).await?;
                    self.store.checkpoint(&held, "charge", &text("x"), LEASE).await?;
                }
            }
            fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::InFlight(left) if *left > LEASE - 5 * SECOND);
        }
        Ok(())
    }

    pub(super) async fn a_key_has_a_hundred_steps(&self) -> Case {
        const NAMES: &str = "stepsABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789stepsABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijk";
        let held = self.claim_new().await?;
        for number in 1..=100 {
            let step = Step::new(&NAMES[..number], Repeat::Always);
            same!((number, self.begin(&held, &step).await?.state), (number, StepState::Run));
        }
        let more = Step::new(&NAMES[..101], Repeat::Always);
        fits!(self.begin(&held, &more).await, Err(StoreError::Refused(_)));
        // Existing steps can continue.
        self.store.checkpoint(&held, &NAMES[..100], &text("x"), LEASE).await?;
        self.store.complete(&held, None).await?;
        Ok(())
    }
}
