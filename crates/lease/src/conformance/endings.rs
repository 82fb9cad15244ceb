//! Cases: ends of runs, and the state kept after them.

use serde_json::{Value, json};

use super::{
    Case, CaseContext, ClaimOutcome, Clock, Duration, LEASE, LeaseStore, ObservedBehaviour, RETENTION,
    SECOND, failure, fits, same, text,
};
use crate::lease_id::FailOutcome;
use oncely_core::decide::KeyStatus;
use oncely_core::reason::Reason;

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    pub(super) async fn a_completed_key_answers_with_its_response(&self) -> Case {
        let held = self.claim_new().await?;
        let response = json!({ "receipt": 7 });
        self.store.complete(&held, Some(&response)).await?;
        for owner in ["second", "first"] {
            same!(self.claim(&held.identity, owner).await?, ClaimOutcome::Done(Some(response.clone())));
        }
        Ok(())
    }

    pub(super) async fn no_response_and_null_are_two_things(&self) -> Case {
        for response in [None, Some(Value::Null), Some(json!(0)), Some(json!("")), Some(json!(false))] {
            let held = self.claim_new().await?;
            self.store.complete(&held, response.as_ref()).await?;
            same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(response));
        }
        Ok(())
    }

    pub(super) async fn a_completion_that_is_said_again_is_done(&self) -> Case {
        let held = self.claim_new().await?;
        self.store.complete(&held, Some(&text("first"))).await?;
        self.store.complete(&held, Some(&text("first"))).await?;
        // Also late; the first response is kept.
        self.expire_lease().await;
        self.store.complete(&held, Some(&text("later"))).await?;
        same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(text("first"))));
        Ok(())
    }

    pub(super) async fn a_completed_key_outlives_its_lease(&self) -> Case {
        let held = self.claim_new().await?;
        self.advance(LEASE / 2).await;
        self.store.complete(&held, Some(&text("done"))).await?;
        for time in [LEASE, Duration::from_secs(86_400), RETENTION - Duration::from_secs(86_400) - 2 * LEASE]
        {
            self.advance(time).await;
            same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(text("done"))));
        }
        Ok(())
    }

    pub(super) async fn a_failed_run_waits_for_its_delay_and_runs_again(&self) -> Case {
        let held = self.claim_new().await?;
        let delay = 10 * SECOND;
        same!(self.store.fail(&held, &failure(delay, 3, None)).await?, FailOutcome::Retry { attempts: 1 });
        fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::Wait(left) if *left <= delay + self.slack() && *left > 5 * SECOND);
        self.advance(delay + self.slack()).await;
        let (grant, _) = self.claim_granted(&held.identity, "second").await?;
        same!((grant.attempt, grant.is_takeover, grant.token > held.token), (2, false, true));
        Ok(())
    }

    pub(super) async fn a_failure_that_is_said_again_counts_once(&self) -> Case {
        let held = self.claim_new().await?;
        for _ in 0..3 {
            same!(
                self.store.fail(&held, &failure(SECOND, 3, None)).await?,
                FailOutcome::Retry { attempts: 1 }
            );
        }
        self.advance(2 * SECOND).await;
        let (grant, _) = self.claim_granted(&held.identity, "second").await?;
        same!(grant.attempt, 2);
        same!(self.store.fail(&held, &failure(SECOND, 3, None)).await?, FailOutcome::Lost);
        Ok(())
    }

    pub(super) async fn attempts_are_used_up(&self) -> Case {
        let mut held = self.claim_new().await?;
        same!(
            self.store.fail(&held, &failure(Duration::ZERO, 2, None)).await?,
            FailOutcome::Retry { attempts: 1 }
        );
        held = self.claim_granted(&held.identity, "second").await?.1;
        let used_up = FailOutcome::GivenUp { attempts: 2, reason: Reason::AttemptsExhausted };
        for _ in 0..2 {
            same!(self.store.fail(&held, &failure(Duration::ZERO, 2, None)).await?, used_up);
        }
        fits!(
            self.claim(&held.identity, "third").await?,
            ClaimOutcome::GivenUp { reason: Reason::AttemptsExhausted, .. }
        );
        Ok(())
    }

    pub(super) async fn a_reason_gives_up_at_once_and_for_good(&self) -> Case {
        let held = self.claim_new().await?;
        let failed = self.store.fail(&held, &failure(SECOND, 9, Some(Reason::OutcomeUnknown))).await?;
        same!(failed, FailOutcome::GivenUp { attempts: 1, reason: Reason::OutcomeUnknown });
        self.advance(3 * LEASE).await;
        let ClaimOutcome::GivenUp { reason, detail } = self.claim(&held.identity, "second").await? else {
            return Err(ObservedBehaviour("it runs again".to_owned()));
        };
        same!((reason, detail.contains("does not answer")), (Reason::OutcomeUnknown, true));
        fits!(self.store.complete(&held, None).await, Err(super::StoreError::Lost));
        Ok(())
    }

    pub(super) async fn a_failure_of_a_completed_run_changes_nothing(&self) -> Case {
        let held = self.claim_new().await?;
        self.store.complete(&held, Some(&text("done"))).await?;
        same!(
            self.store.fail(&held, &failure(SECOND, 1, Some(Reason::Poison))).await?,
            FailOutcome::Completed
        );
        same!(self.store.release(&held).await?, false);
        same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(text("done"))));
        Ok(())
    }

    pub(super) async fn a_released_key_is_free_at_once_and_nothing_is_counted(&self) -> Case {
        let held = self.claim_new().await?;
        same!(self.store.release(&held).await?, true);
        let (grant, _) = self.claim_granted(&held.identity, "second").await?;
        same!((grant.attempt, grant.is_takeover), (1, false));
        Ok(())
    }

    pub(super) async fn a_release_that_is_said_again_is_one(&self) -> Case {
        let held = self.claim_new().await?;
        same!(self.store.release(&held).await?, true);
        same!(self.store.release(&held).await?, true);
        let (_, next) = self.claim_granted(&held.identity, "second").await?;
        same!(self.store.release(&held).await?, false);
        self.assert_held_by(&next).await
    }

    pub(super) async fn what_is_known_of_a_key_is_told(&self) -> Case {
        let held = self.claim_new().await?;
        let known = async || {
            let known = self.store.look_up(&held.identity).await?;
            known.ok_or_else(|| ObservedBehaviour("nothing is known".to_owned()))
        };
        let first = known().await?;
        same!((first.status, first.owner.as_deref()), (KeyStatus::InProgress, Some("first")));
        same!((first.token, first.attempts, first.crashes), (held.token, 0, 0));
        self.expire_lease().await;
        let (_, second) = self.claim_granted(&held.identity, "second").await?;
        same!(known().await?.crashes, 1);
        self.store.complete(&second, Some(&text("done"))).await?;
        let last = known().await?;
        same!((last.status, last.owner, last.response), (KeyStatus::Completed, None, Some(text("done"))));
        same!((last.token, last.attempts, last.reason), (second.token, 1, None));
        Ok(())
    }
}
