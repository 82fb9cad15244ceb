//! Cases: the repetition of calls that may have happened.

use super::{
    Case, CaseContext, Clock, Duration, LEASE, LeaseId, LeaseStore, ObservedBehaviour, Repeat, SECOND, Step,
    failure, fits, same, text,
};
use crate::held::{FailOutcome, StepState};

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    /// Begins the step in a run that then crashes; returns the lease of the next run.
    async fn begun_and_gone(&self, step: &Step) -> Result<LeaseId, ObservedBehaviour> {
        let held = self.held().await?;
        same!(self.begin(&held, step).await?.state, StepState::Run);
        self.run_out().await;
        Ok(self.granted(&held.identity, "second").await?.1)
    }

    pub(super) async fn always_is_repeated_by_the_same_key(&self) -> Case {
        let step = Step::new("charge", Repeat::Always);
        let held = self.held().await?;
        let first = self.begin(&held, &step).await?;
        self.run_out().await;
        let (_, held) = self.granted(&held.identity, "second").await?;
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
        let held = self.begun_and_gone(&step).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Repeat);
        // Counted from the first call, less a tenth: a repetition does not extend it.
        self.pass(95 * SECOND - LEASE).await;
        let (_, held) = self.granted(&held.identity, "third").await?;
        same!(self.begin(&held, &step).await?.state, StepState::Unknown);
        Ok(())
    }

    pub(super) async fn never_and_ask_are_not_repeated(&self) -> Case {
        for repeat in [Repeat::Never, Repeat::Ask] {
            let step = Step::new("mail", repeat);
            let held = self.begun_and_gone(&step).await?;
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
            let held = self.begun_and_gone(&Step::new("charge", then)).await?;
            let state = self.begin(&held, &Step::new("charge", now)).await?.state;
            same!((then, now, state), (then, now, StepState::Unknown));
        }
        Ok(())
    }

    pub(super) async fn a_refused_repetition_says_nothing_of_the_first_call(&self) -> Case {
        let step = Step::new("charge", Repeat::Always);
        let held = self.begun_and_gone(&step).await?;
        let again = self.begin(&held, &step).await?;
        same!(self.store.refuse_step(&held, "charge", again.round, LEASE).await?, 0);
        // Nor do refusals by later runs, nor a repeated one.
        let mut held = held;
        for owner in ["third", "fourth"] {
            same!(self.store.refuse_step(&held, "charge", again.round, LEASE).await?, 0);
            let failed = self.store.fail(&held, &failure(Duration::ZERO, 9, None)).await?;
            fits!(failed, FailOutcome::Retry { .. });
            held = self.granted(&held.identity, owner).await?.1;
            let repeated = self.begin(&held, &step).await?;
            same!((repeated.state, repeated.call_key), (StepState::Repeat, again.call_key));
            same!(self.store.refuse_step(&held, "charge", repeated.round, LEASE).await?, 0);
        }
        // The first call certainly happened: its answer was found.
        self.store.checkpoint(&held, "charge", &text("ch_1"), LEASE).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Done(text("ch_1")));
        Ok(())
    }

    pub(super) async fn an_answered_question_begins_the_next_round(&self) -> Case {
        let step = Step::new("mail", Repeat::Ask);
        let held = self.begun_and_gone(&step).await?;
        same!(self.begin(&held, &step).await?.state, StepState::Unknown);
        // The other side does not know the call.
        same!(self.store.refuse_step(&held, "mail", 0, LEASE).await?, 1);
        let again = self.begin(&held, &step).await?;
        same!((again.state, again.round), (StepState::Run, 1));
        Ok(())
    }
}
