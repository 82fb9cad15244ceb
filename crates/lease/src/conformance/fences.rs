//! Cases: calls with a lease that was taken over, or of a run that has ended, change nothing.

use super::{
    CHARGE, Case, CaseContext, ClaimOutcome, Clock, LEASE, LeaseId, LeaseStore, RefusedCall, RenewOutcome,
    SECOND, StoreError, failure, fits, same, text,
};
use crate::lease_id::{FailOutcome, StepState};

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    pub(super) async fn a_late_finish_without_a_takeover_stands(&self) -> Case {
        let held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        self.expire_lease().await;
        self.store.checkpoint(&held, "charge", &text("late"), LEASE).await?;
        self.expire_lease().await;
        self.store.complete(&held, Some(&text("late"))).await?;
        same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(text("late"))));
        Ok(())
    }

    pub(super) async fn a_frozen_holder_cannot_complete(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        fits!(self.store.complete(&old, Some(&text("old"))).await, Err(StoreError::Lost));
        self.assert_held_by(&new).await?;
        self.store.complete(&new, Some(&text("new"))).await?;
        fits!(self.store.complete(&old, Some(&text("old"))).await, Err(StoreError::Lost));
        same!(self.claim(&old.identity, "third").await?, ClaimOutcome::Done(Some(text("new"))));
        Ok(())
    }

    pub(super) async fn a_frozen_holder_cannot_fail(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        same!(self.store.fail(&old, &failure(SECOND, 1, None)).await?, FailOutcome::Lost);
        self.assert_held_by(&new).await?;
        self.store.complete(&new, None).await?;
        same!(self.store.fail(&old, &failure(SECOND, 1, None)).await?, FailOutcome::Lost);
        same!(self.claim(&old.identity, "third").await?, ClaimOutcome::Done(None));
        Ok(())
    }

    pub(super) async fn a_frozen_holder_cannot_release(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        same!(self.store.release(&old).await?, false);
        fits!(self.claim(&old.identity, "third").await?, ClaimOutcome::InFlight(_));
        self.assert_held_by(&new).await
    }

    pub(super) async fn a_frozen_holder_cannot_renew(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        self.advance(LEASE - 5 * SECOND).await;
        same!(self.renew(&old).await?, RenewOutcome::Lost);
        self.advance(6 * SECOND + self.store.facts().clock.grace()).await;
        let (grant, _) = self.claim_granted(&old.identity, "third").await?;
        same!(grant.token > new.token, true);
        Ok(())
    }

    pub(super) async fn a_frozen_holder_cannot_begin_a_step(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        fits!(self.begin(&old, &CHARGE).await, Err(StoreError::Lost));
        same!(self.begin(&new, &CHARGE).await?.state, StepState::Run);
        Ok(())
    }

    pub(super) async fn a_frozen_holder_decides_nothing_about_a_call_of_another_run(&self) -> Case {
        let old = self.claim_new().await?;
        self.begin(&old, &CHARGE).await?;
        self.expire_lease().await;
        let (_, new) = self.claim_granted(&old.identity, "second").await?;
        same!(self.begin(&new, &CHARGE).await?.state, StepState::Repeat);
        fits!(self.store.checkpoint(&old, "charge", &text("old"), LEASE).await, Err(StoreError::Lost));
        fits!(
            self.store.refuse_step(&old, "charge", RefusedCall::Round(0), LEASE).await,
            Err(StoreError::Lost)
        );
        fits!(self.store.checkpoint(&old, "mail", &text("old"), LEASE).await, Err(StoreError::Lost));
        self.store.checkpoint(&new, "charge", &text("new"), LEASE).await?;
        fits!(self.store.checkpoint(&old, "charge", &text("old"), LEASE).await, Err(StoreError::Lost));
        same!(self.begin(&new, &CHARGE).await?.state, StepState::Done(text("new")));
        Ok(())
    }

    pub(super) async fn a_finished_run_says_nothing_more(&self) -> Case {
        let completed = self.claim_new().await?;
        self.begin(&completed, &CHARGE).await?;
        self.store.complete(&completed, None).await?;
        let failed = self.claim_new().await?;
        self.store.fail(&failed, &failure(SECOND, 9, None)).await?;
        let released = self.claim_new().await?;
        self.store.release(&released).await?;
        for held in [&completed, &failed, &released] {
            same!(self.renew(held).await?, RenewOutcome::Lost);
            fits!(self.begin(held, &CHARGE).await, Err(StoreError::Lost));
            fits!(self.store.checkpoint(held, "charge", &text("x"), LEASE).await, Err(StoreError::Lost));
            fits!(
                self.store.refuse_step(held, "charge", RefusedCall::Round(0), LEASE).await,
                Err(StoreError::Lost)
            );
        }
        for held in [&failed, &released] {
            fits!(self.store.complete(held, None).await, Err(StoreError::Lost));
        }
        same!(self.store.release(&completed).await?, false);
        same!(self.claim(&completed.identity, "second").await?, ClaimOutcome::Done(None));
        Ok(())
    }

    pub(super) async fn a_token_of_another_key_is_worth_nothing(&self) -> Case {
        let (mine, theirs) = (self.claim_new().await?, self.claim_new().await?);
        for token in [mine.token, theirs.token.saturating_add(1), theirs.token - 1, 0, -1, i64::MAX] {
            let forged = LeaseId { token, ..theirs.clone() };
            if token == theirs.token {
                continue;
            }
            fits!(self.store.complete(&forged, None).await, Err(StoreError::Lost));
            same!(self.store.release(&forged).await?, false);
            same!(self.renew(&forged).await?, RenewOutcome::Lost);
        }
        self.assert_held_by(&theirs).await
    }
}
