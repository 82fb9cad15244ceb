//! Cases: refused arguments, and values returned unchanged.

use serde_json::{Value, json};

use super::{
    CHARGE, Case, CaseContext, Claim, ClaimOutcome, Clock, Duration, LEASE, LeaseStore, RefusedCall, Repeat,
    SECOND, Step, StoreError, claim, failure, fits, same, text,
};
use crate::lease_id::StepState;

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    pub(super) async fn what_is_too_large_is_refused_and_what_just_fits_is_kept(&self) -> Case {
        // Including the quotes.
        let (fits, large) = (text(&"x".repeat(65_534)), text(&"x".repeat(65_535)));
        let held = self.claim_new().await?;
        self.begin(&held, &CHARGE).await?;
        fits!(self.store.checkpoint(&held, "charge", &large, LEASE).await, Err(StoreError::Refused(_)));
        self.store.checkpoint(&held, "charge", &fits, LEASE).await?;
        fits!(self.store.complete(&held, Some(&large)).await, Err(StoreError::Refused(_)));
        self.assert_held_by(&held).await?;
        self.store.complete(&held, Some(&fits)).await?;
        same!(self.claim(&held.identity, "second").await? == ClaimOutcome::Done(Some(fits)), true);
        Ok(())
    }

    pub(super) async fn times_and_counts_out_of_bounds_are_refused(&self) -> Case {
        let key = self.key()?;
        let good = claim(&key, "first");
        let day = Duration::from_secs(86_400);
        for bad in [
            Claim { lease: Duration::ZERO, ..good },
            Claim { lease: day + SECOND, max_run: 2 * day, ..good },
            Claim { max_run: LEASE - SECOND, ..good },
            Claim { max_run: 31 * day, retention: 40 * day, ..good },
            Claim { retention: good.max_run - SECOND, ..good },
            Claim { retention: Duration::MAX, ..good },
            Claim { max_crashes: 0, ..good },
        ] {
            fits!(self.store.claim(&bad).await, Err(StoreError::Refused(_)));
        }
        let (_, held) = self.claim_granted(&key, "first").await?;
        for lease in [Duration::ZERO, 2 * day] {
            fits!(self.store.renew(std::slice::from_ref(&held), lease).await, Err(StoreError::Refused(_)));
        }
        fits!(self.store.fail(&held, &failure(SECOND, 0, None)).await, Err(StoreError::Refused(_)));
        fits!(self.store.fail(&held, &failure(4_000 * day, 3, None)).await, Err(StoreError::Refused(_)));
        let step = Step::new("charge", Repeat::Within(Duration::ZERO));
        fits!(self.begin(&held, &step).await, Err(StoreError::Refused(_)));
        self.assert_held_by(&held).await
    }

    pub(super) async fn names_out_of_bounds_are_refused(&self) -> Case {
        let key = self.key()?;
        let long = "o".repeat(256);
        for owner in ["", &long, "a\0b"] {
            fits!(self.claim(&key, owner).await, Err(StoreError::Refused(_)));
        }
        let (_, held) = self.claim_granted(&key, "first").await?;
        for name in ["", "a\0b"] {
            fits!(self.begin(&held, &Step::new(name, Repeat::Always)).await, Err(StoreError::Refused(_)));
            fits!(self.store.checkpoint(&held, name, &Value::Null, LEASE).await, Err(StoreError::Refused(_)));
            fits!(
                self.store.refuse_step(&held, name, RefusedCall::Round(0), LEASE).await,
                Err(StoreError::Refused(_))
            );
        }
        self.assert_held_by(&held).await
    }

    pub(super) async fn json_comes_back_as_it_was(&self) -> Case {
        for value in [
            json!({}),
            json!([]),
            json!([[], {}, null, "", 0, false]),
            json!({ "deep": { "er": [{ "and": ["er"] }] } }),
            json!([i64::MIN, i64::MAX, 9_007_199_254_740_993_i64, 0.1, -1.5e-7]),
            json!("\u{e9}\u{1f980}\"\\/\n\u{7f}"),
        ] {
            let held = self.claim_new().await?;
            self.begin(&held, &CHARGE).await?;
            self.store.checkpoint(&held, "charge", &value, LEASE).await?;
            same!(self.begin(&held, &CHARGE).await?.state, StepState::Done(value.clone()));
            self.store.complete(&held, Some(&value)).await?;
            same!(self.claim(&held.identity, "second").await?, ClaimOutcome::Done(Some(value)));
        }
        Ok(())
    }
}
