//! Cases: grants, renewals and takeovers.

use futures::future::join_all;

use super::{
    Case, CaseContext, Claim, ClaimOutcome, Clock, Duration, LEASE, LeaseId, LeaseStore, MAX_RUN,
    ObservedBehaviour, RefusedCall, RenewOutcome, SECOND, claim, failure, fingerprint, fits, identity, same,
    text,
};
use crate::lease_id::FailOutcome;
use oncely_core::reason::Reason;

fn one_won(claimed: Vec<Result<ClaimOutcome, super::StoreError>>) -> Case {
    let mut won = 0;
    for one in claimed {
        match one? {
            ClaimOutcome::Granted(_) => won += 1,
            ClaimOutcome::InFlight(_) => {}
            other => return Err(ObservedBehaviour(format!("a loser of the race is told {other:?}"))),
        }
    }
    same!(won, 1);
    Ok(())
}

impl<S: LeaseStore, C: Clock> CaseContext<'_, S, C> {
    pub(super) async fn a_fresh_key_is_granted(&self) -> Case {
        let (grant, held) = self.claim_granted(&self.key()?, "first").await?;
        same!((grant.attempt, grant.is_takeover), (1, false));
        self.assert_held_by(&held).await
    }

    pub(super) async fn one_of_64_claimants_wins(&self) -> Case {
        let key = self.key()?;
        let owners: Vec<String> = (0..64).map(|number| format!("racer {number}")).collect();
        let claimed = join_all(owners.iter().map(|owner| self.claim(&key, owner))).await;
        one_won(claimed)
    }

    pub(super) async fn a_held_key_is_in_flight_for_the_rest_of_its_lease(&self) -> Case {
        let held = self.claim_new().await?;
        // An estimated clock may be wrong at both ends.
        let grace = self.store.facts().clock.grace() * 2;
        fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::InFlight(left) if *left <= LEASE + grace && *left > LEASE - 5 * SECOND);
        self.advance(20 * SECOND).await;
        fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::InFlight(left) if *left <= 10 * SECOND + grace && *left > SECOND);
        self.assert_held_by(&held).await
    }

    pub(super) async fn a_claim_that_is_said_again_is_granted_again(&self) -> Case {
        let key = self.key()?;
        let (first, _) = self.claim_granted(&key, "one").await?;
        let (again, held) = self.claim_granted(&key, "one").await?;
        same!(again, first);
        // Also late, as long as no other run has it; and the lease counts from then on.
        self.expire_lease().await;
        let (late, _) = self.claim_granted(&key, "one").await?;
        same!(late, first);
        // Also after the time of its run is over: the run has not begun, so its time counts from then on, too.
        self.advance(claim(&key, "one").max_run).await;
        let (later, _) = self.claim_granted(&key, "one").await?;
        same!(later, first);
        fits!(self.claim(&key, "another").await?, ClaimOutcome::InFlight(_));
        self.assert_held_by(&held).await
    }

    pub(super) async fn a_lease_that_has_run_out_is_taken_over(&self) -> Case {
        let (old, new) = self.take_over_new().await?;
        same!(self.renew(&old).await?, RenewOutcome::Lost);
        self.assert_held_by(&new).await
    }

    pub(super) async fn one_of_16_takeovers_wins(&self) -> Case {
        let held = self.claim_new().await?;
        self.expire_lease().await;
        let owners: Vec<String> = (0..16).map(|number| format!("heir {number}")).collect();
        one_won(join_all(owners.iter().map(|owner| self.claim(&held.identity, owner))).await)
    }

    pub(super) async fn a_renewed_lease_is_not_taken_over(&self) -> Case {
        let held = self.claim_new().await?;
        for _ in 0..4 {
            self.advance(LEASE - 5 * SECOND).await;
            fits!(self.renew(&held).await?, RenewOutcome::Until(left) if *left <= LEASE + self.slack() && *left > LEASE - 5 * SECOND);
            fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::InFlight(_));
        }
        // Late, but no other claim came first.
        self.expire_lease().await;
        self.assert_held_by(&held).await
    }

    pub(super) async fn no_renewal_goes_beyond_the_run(&self) -> Case {
        let held = self.claim_new().await?;
        self.advance(MAX_RUN - 10 * SECOND).await;
        fits!(self.renew(&held).await?, RenewOutcome::Until(left) if *left <= 10 * SECOND + self.slack());
        self.advance(11 * SECOND + self.slack()).await;
        same!(self.renew(&held).await?, RenewOutcome::Lost);
        self.advance(self.store.facts().clock.grace()).await;
        let (grant, _) = self.claim_granted(&held.identity, "second").await?;
        same!(grant.is_takeover, true);
        Ok(())
    }

    pub(super) async fn a_renewal_shortens_no_lease(&self) -> Case {
        let held = self.claim_new().await?;
        let renewed = self.store.renew(std::slice::from_ref(&held), SECOND).await?;
        fits!(renewed.as_slice(), [RenewOutcome::Until(left)] if *left > LEASE - 5 * SECOND);
        self.advance(10 * SECOND).await;
        fits!(self.claim(&held.identity, "second").await?, ClaimOutcome::InFlight(_));
        Ok(())
    }

    pub(super) async fn many_leases_are_renewed_at_once_and_told_apart(&self) -> Case {
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(self.claim_new().await?);
        }
        self.store.complete(&held[1], None).await?;
        held[3].token -= 1;
        let renewed = self.store.renew(&held, LEASE).await?;
        let lost: Vec<bool> = renewed.iter().map(|one| *one == RenewOutcome::Lost).collect();
        same!(lost, [false, true, false, true, false]);
        same!(self.store.renew(&[], LEASE).await?, Vec::new());
        Ok(())
    }

    pub(super) async fn another_payload_is_a_conflict_in_every_state(&self) -> Case {
        let other = |held: &LeaseId| {
            let identity = held.identity.clone();
            async move {
                let other = Claim { fingerprint: fingerprint(b"another"), ..claim(&identity, "second") };
                self.store.claim(&other).await
            }
        };
        let held = self.claim_new().await?;
        same!(other(&held).await?, ClaimOutcome::Conflict);
        self.expire_lease().await;
        same!(other(&held).await?, ClaimOutcome::Conflict);
        self.assert_held_by(&held).await?;
        self.store.release(&held).await?;
        same!(other(&held).await?, ClaimOutcome::Conflict);
        let (_, held) = self.claim_granted(&held.identity, "third").await?;
        self.store.complete(&held, Some(&text("a secret"))).await?;
        same!(other(&held).await?, ClaimOutcome::Conflict);
        let failed = self.claim_new().await?;
        self.store.fail(&failed, &failure(SECOND, 1, None)).await?;
        same!(other(&failed).await?, ClaimOutcome::Conflict);
        Ok(())
    }

    pub(super) async fn tenants_consumers_and_keys_are_apart(&self) -> Case {
        let tenant = &self.tenant;
        let long = format!("{tenant}a");
        let mut keys = Vec::new();
        for parts in [
            (tenant.as_str(), "ab", "c"),
            (tenant, "a", "bc"),
            (&long, "b", "c"),
            (tenant, "c", "ab"),
            (tenant, "AB", "c"),
            (tenant, "ab ", "c"),
            (tenant, "ab", "c "),
            (tenant, "ab:", "c"),
            (tenant, "ab", ":c"),
        ] {
            keys.push(identity(parts.0, parts.1, parts.2)?);
        }
        for key in &keys {
            let (grant, held) = self.claim_granted(key, "first").await?;
            same!(grant.attempt, 1);
            self.store.complete(&held, Some(&text(&format!("{key:?}")))).await?;
        }
        for key in &keys {
            same!(self.claim(key, "second").await?, ClaimOutcome::Done(Some(text(&format!("{key:?}")))));
        }
        Ok(())
    }

    pub(super) async fn any_text_is_a_key(&self) -> Case {
        for key in [
            "{a}}{".to_owned(),
            "'; drop table x; --".to_owned(),
            "line\nbreak\ttab\r\u{1}".to_owned(),
            "\u{202e}\u{e9}e\u{301}\u{1f980}".to_owned(),
            "*?[a-z]\\".to_owned(),
            "k".repeat(255),
        ] {
            let identity = identity(&self.tenant, &key, &key)?;
            let (_, held) = self.claim_granted(&identity, &key).await?;
            self.begin(&held, &super::CHARGE).await?;
            self.store.complete(&held, Some(&text(&key))).await?;
            same!(self.claim(&identity, "second").await?, ClaimOutcome::Done(Some(text(&key))));
        }
        Ok(())
    }

    pub(super) async fn tokens_only_grow(&self) -> Case {
        let mut held = self.claim_new().await?;
        for round in 0..12 {
            match round % 3 {
                0 => same!(self.store.release(&held).await?, true),
                1 => fits!(
                    self.store.fail(&held, &failure(Duration::ZERO, 100, None)).await?,
                    FailOutcome::Retry { .. }
                ),
                _ => self.expire_lease().await,
            }
            let (grant, next) = self.claim_granted(&held.identity, &format!("owner {round}")).await?;
            same!((round, grant.token > held.token), (round, true));
            held = next;
        }
        Ok(())
    }

    pub(super) async fn runs_without_a_word_are_counted_and_given_up(&self) -> Case {
        let (_, held) = self.take_over_new().await?;
        self.expire_lease().await;
        let (grant, held) = self.claim_granted(&held.identity, "third").await?;
        same!((grant.attempt, grant.is_takeover), (1, true));
        self.expire_lease().await;
        for owner in ["fourth", "fifth"] {
            fits!(
                self.claim(&held.identity, owner).await?,
                ClaimOutcome::GivenUp { reason: Reason::Crash, .. }
            );
        }
        same!(self.renew(&held).await?, RenewOutcome::Lost);
        Ok(())
    }

    pub(super) async fn a_reported_failure_forgives_the_runs_before(&self) -> Case {
        let (_, mut held) = self.take_over_new().await?;
        for round in 0..4 {
            self.store.fail(&held, &failure(Duration::ZERO, 100, None)).await?;
            let (grant, _) = self.claim_granted(&held.identity, &format!("fresh {round}")).await?;
            same!((grant.attempt, grant.is_takeover), (round + 2, false));
            self.expire_lease().await;
            let (grant, next) = self.claim_granted(&held.identity, &format!("heir {round}")).await?;
            same!(grant.is_takeover, true);
            held = next;
        }
        Ok(())
    }

    pub(super) async fn nobody_holds_an_unknown_key(&self) -> Case {
        let held = LeaseId { identity: self.key()?, token: 1_800_000_000_000_000 };
        same!(self.renew(&held).await?, RenewOutcome::Lost);
        same!(self.store.release(&held).await?, false);
        same!(self.store.fail(&held, &failure(SECOND, 3, None)).await?, FailOutcome::Lost);
        fits!(self.store.complete(&held, None).await, Err(super::StoreError::Lost));
        fits!(self.begin(&held, &super::CHARGE).await, Err(super::StoreError::Lost));
        fits!(self.store.checkpoint(&held, "charge", &text("x"), LEASE).await, Err(super::StoreError::Lost));
        fits!(
            self.store.refuse_step(&held, "charge", RefusedCall::Round(0), LEASE).await,
            Err(super::StoreError::Lost)
        );
        same!(self.store.look_up(&held.identity).await?, None);
        let (grant, _) = self.claim_granted(&held.identity, "first").await?;
        same!(grant.attempt, 1);
        Ok(())
    }
}
