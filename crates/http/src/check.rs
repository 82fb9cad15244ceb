//! Validates settings.

use std::collections::BTreeSet;
use std::time::Duration;

use http::Method;

use super::consumer::{Consumer, ConsumerName};
use super::settings::{DAY, KeyStore, OnLarge, Settings};
use oncely_core::fingerprint::FingerprintPolicy;
use oncely_core::identity::IdentityPart;
use oncely_core::retry::RetryPolicy;

/// Maximum of `handler_limit`: PostgreSQL ends a session that is idle in a transaction for longer (`oncely.claim_request`).
const MAX_HANDLER_LIMIT: Duration = Duration::from_secs(60);
/// Maximum of `handler_limit` under a lease.
const MAX_LEASED_HANDLER_LIMIT: Duration = Duration::from_secs(12 * 3_600);
const MAX_WAIT: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// All problems of a layer's settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct SettingsError(Vec<String>);

impl Settings {
    /// Returns the settings if all of them are valid.
    ///
    /// # Errors
    /// If settings are invalid: all their problems at once.
    pub(super) fn validate(mut self) -> Result<Self, SettingsError> {
        let mut problems = std::mem::take(&mut self.problems);
        let mut require = |is_right: bool, text: &str| {
            if !is_right {
                problems.push(text.to_owned());
            }
        };
        require(self.consumer.is_some(), "consumer is not set: Consumer::named, or another one");
        require(self.tenant.is_some(), "tenant is not set: whose requests are they?");
        if let Some(Consumer(ConsumerName::Fixed(name) | ConsumerName::Shared(name))) = &self.consumer {
            require(
                IdentityPart::new(name.as_bytes()).is_ok(),
                "consumer: a name has 1 to 255 bytes without NUL",
            );
        }
        let is_shared = self.is_shared();
        require(
            !is_shared || self.fingerprint.is_some(),
            "fingerprint is not set: a shared consumer compares what its queue compares, such as FingerprintPolicy::Body",
        );
        require(
            self.fingerprint.is_none() || self.principal.is_none(),
            "principal: it is not compared where fingerprint says what is",
        );
        require(
            self.principal.is_some() != self.is_one_principal,
            "principal: who sends a request? Either principal, or one_principal, which gives an answer to every client that repeats its request",
        );
        self.limits.check(self.max_request, &mut require);
        let at_most = |time: Duration, max: Duration| !time.is_zero() && time <= max;
        require(at_most(self.wait, MAX_WAIT), "wait: more than nothing, and 60 s at most");
        match self.keys {
            KeyStore::Transactions(_) => {
                require(
                    at_most(self.handler_limit, MAX_HANDLER_LIMIT),
                    "handler_limit: more than nothing, and 60 s at most",
                );
                require(
                    self.lease.is_none() && self.retry.is_none(),
                    "lease and retry: for IdempotencyLayer::leased alone",
                );
                require(
                    !is_shared || self.redelivery_horizon.is_none(),
                    "redelivery_horizon: a shared consumer's is that of its queue",
                );
            }
            KeyStore::Leases(_) => self.check_leases(is_shared, &mut require),
        }
        require(
            (self.horizon()..=3_650 * DAY).contains(&self.retention) && self.horizon() >= SECOND,
            "retention: redelivery_horizon (1 day, or a second at least) to 3,650 days",
        );
        require((1..=255).contains(&self.worker.len()), "worker: a name has 1 to 255 bytes");
        require(
            self.max_response <= 64 * 1_048_576 && self.max_request <= 1_024 * 1_048_576,
            "max_request is 1 GiB at most, max_response 64 MiB",
        );
        let unique: BTreeSet<&str> = self.methods.iter().map(Method::as_str).collect();
        require(!unique.is_empty(), "methods: none is left");
        if problems.is_empty() { Ok(self) } else { Err(SettingsError(problems)) }
    }

    /// Checks the settings of handlers that run under leases.
    fn check_leases(&self, is_shared: bool, require: &mut impl FnMut(bool, &str)) {
        require(
            (SECOND..=MAX_LEASED_HANDLER_LIMIT).contains(&self.handler_limit),
            "handler_limit: 1 s to 12 hours under a lease",
        );
        require(
            self.lease.is_none_or(|lease| (SECOND..=self.handler_limit).contains(&lease)),
            "lease: a second at least, and no longer than handler_limit",
        );
        require(
            self.redelivery_horizon.is_none(),
            "redelivery_horizon: for IdempotencyLayer::transactional alone",
        );
        let RetryPolicy { delays, max_attempts, max_crashes } = self.retry_policy();
        require(
            [max_attempts, max_crashes].iter().all(|count| (1..=10_000).contains(count)),
            "retry: 1 to 10,000 runs, and as many deaths",
        );
        require(delays.iter().all(|delay| *delay <= 365 * DAY), "retry: a delay is 365 days at most");
        require(
            self.on_large != Some(OnLarge::Fail),
            "on_large: an effect under a lease has happened, however large its answer is",
        );
        require(
            !is_shared
                || matches!(
                    &self.fingerprint,
                    None | Some(FingerprintPolicy::Body | FingerprintPolicy::None)
                ),
            "fingerprint: a consumer that is shared under leases compares the body, or nothing",
        );
    }
}
