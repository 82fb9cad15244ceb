//! Cases: calls with a lease that was taken over, or of a run that has ended, change nothing.

use super::{
    CHARGE, Case, CaseContext, ClaimOutcome, Clock, LEASE, LeaseId, LeaseStore, RenewOutcome, SECOND,
    StoreError, failure, fits, same, text,
};
use crate::held::{FailOutcome, StepState};

pub(super) async fn a_late_finish_without_a_takeover_stands<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let held = trial.held().await?;
    trial.begin(&held, &CHARGE).await?;
    trial.run_out().await;
    trial.store.checkpoint(&held, "charge", &text("late"), LEASE).await?;
    trial.run_out().await;
    trial.store.complete(&held, Some(&text("late"))).await?;
    same!(trial.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(text("late"))));
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_complete<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (old, new) = trial.taken_over().await?;
    fits!(trial.store.complete(&old, Some(&text("old"))).await, Err(StoreError::Lost));
    trial.is_held_by(&new).await?;
    trial.store.complete(&new, Some(&text("new"))).await?;
    fits!(trial.store.complete(&old, Some(&text("old"))).await, Err(StoreError::Lost));
    same!(trial.claim(&old.identity, "third").await?, ClaimOutcome::Done(Some(text("new"))));
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_fail<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (old, new) = trial.taken_over().await?;
    same!(trial.store.fail(&old, &failure(SECOND, 1, None)).await?, FailOutcome::Lost);
    trial.is_held_by(&new).await?;
    trial.store.complete(&new, None).await?;
    same!(trial.store.fail(&old, &failure(SECOND, 1, None)).await?, FailOutcome::Lost);
    same!(trial.claim(&old.identity, "third").await?, ClaimOutcome::Done(None));
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_release<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (old, new) = trial.taken_over().await?;
    same!(trial.store.release(&old).await?, false);
    fits!(trial.claim(&old.identity, "third").await?, ClaimOutcome::InFlight(_));
    trial.is_held_by(&new).await
}

pub(super) async fn a_frozen_holder_cannot_renew<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (old, new) = trial.taken_over().await?;
    trial.pass(LEASE - 5 * SECOND).await;
    same!(trial.renew(&old).await?, RenewOutcome::Lost);
    trial.pass(6 * SECOND + trial.store.facts().clock.grace()).await;
    let (grant, _) = trial.granted(&old.identity, "third").await?;
    same!(grant.token > new.token, true);
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_begin_a_step<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (old, new) = trial.taken_over().await?;
    fits!(trial.begin(&old, &CHARGE).await, Err(StoreError::Lost));
    same!(trial.begin(&new, &CHARGE).await?.state, StepState::Run);
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_store_a_result<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let old = trial.held().await?;
    trial.begin(&old, &CHARGE).await?;
    trial.run_out().await;
    let (_, new) = trial.granted(&old.identity, "second").await?;
    fits!(trial.store.checkpoint(&old, "charge", &text("old"), LEASE).await, Err(StoreError::Lost));
    same!(trial.begin(&new, &CHARGE).await?.state, StepState::Repeat);
    Ok(())
}

pub(super) async fn a_frozen_holder_cannot_refuse_a_step<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let old = trial.held().await?;
    trial.begin(&old, &CHARGE).await?;
    trial.run_out().await;
    let (_, new) = trial.granted(&old.identity, "second").await?;
    fits!(trial.store.refuse_step(&old, "charge", 0, LEASE).await, Err(StoreError::Lost));
    let begun = trial.begin(&new, &CHARGE).await?;
    same!((begun.state, begun.round), (StepState::Repeat, 0));
    Ok(())
}

pub(super) async fn a_finished_run_says_nothing_more<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let completed = trial.held().await?;
    trial.begin(&completed, &CHARGE).await?;
    trial.store.complete(&completed, None).await?;
    let failed = trial.held().await?;
    trial.begin(&failed, &CHARGE).await?;
    trial.store.fail(&failed, &failure(SECOND, 9, None)).await?;
    let released = trial.held().await?;
    trial.begin(&released, &CHARGE).await?;
    trial.store.release(&released).await?;
    for held in [&completed, &failed, &released] {
        same!(trial.renew(held).await?, RenewOutcome::Lost);
        fits!(trial.begin(held, &CHARGE).await, Err(StoreError::Lost));
        fits!(trial.store.checkpoint(held, "charge", &text("x"), LEASE).await, Err(StoreError::Lost));
        fits!(trial.store.refuse_step(held, "charge", 0, LEASE).await, Err(StoreError::Lost));
    }
    for held in [&failed, &released] {
        fits!(trial.store.complete(held, None).await, Err(StoreError::Lost));
    }
    same!(trial.store.release(&completed).await?, false);
    same!(trial.claim(&completed.identity, "second").await?, ClaimOutcome::Done(None));
    Ok(())
}

pub(super) async fn a_token_of_another_key_is_worth_nothing<S: LeaseStore, C: Clock>(
    trial: &CaseContext<'_, S, C>,
) -> Case {
    let (mine, theirs) = (trial.held().await?, trial.held().await?);
    for token in [mine.token, theirs.token.saturating_add(1), theirs.token - 1, 0, -1, i64::MAX] {
        let forged = LeaseId { token, ..theirs.clone() };
        if token == theirs.token {
            continue;
        }
        fits!(trial.store.complete(&forged, None).await, Err(StoreError::Lost));
        same!(trial.store.release(&forged).await?, false);
        same!(trial.renew(&forged).await?, RenewOutcome::Lost);
    }
    trial.is_held_by(&theirs).await
}
