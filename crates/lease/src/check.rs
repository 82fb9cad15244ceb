//! Argument checks of all stores, with the same bounds as the SQL functions.

use std::time::Duration;

use serde_json::Value;

use super::claim::Claim;
use super::error::StoreError;
use super::lease_id::Failure;
use super::step::{Repeat, Step};
use oncely_core::identity::IdentityPart;
use oncely_postgres as pg;

const SECOND: Duration = Duration::from_secs(1);
/// Also the maximum duration of a lease.
pub(super) const DAY: Duration = Duration::from_secs(86_400);
const MAX_DURATION: Duration = Duration::from_secs(3_650 * 86_400);
/// Maximum number of steps of a key.
pub(super) const MAX_STEPS: usize = 100;
/// Size in bytes of all results of a key from which no further step may begin.
pub(super) const MAX_RESULT_BYTES: usize = 1_048_576;

/// Refuses a duration out of its bounds.
fn check_duration(name: &str, value: Duration, min: Duration, max: Duration) -> Result<(), StoreError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{name} is {value:?}; it is {min:?} to {max:?}")))
}

/// Refuses a number out of 1 to 10,000.
fn check_count(name: &str, value: u32) -> Result<(), StoreError> {
    if (1..=10_000).contains(&value) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{name} is {value}; it is 1 to 10000")))
}

/// Refuses a text that can't be a part of an identity.
fn check_text(name: &str, value: &str) -> Result<(), StoreError> {
    IdentityPart::new(value.as_bytes())
        .map(drop)
        .map_err(|error| StoreError::Refused(format!("{name} {error}")))
}

/// Refuses a claim with arguments out of bounds.
pub fn check_claim(claim: &Claim<'_>) -> Result<(), StoreError> {
    check_text("owner", claim.owner)?;
    check_lease(claim.lease)?;
    check_duration("max_run", claim.max_run, claim.lease, 30 * DAY)?;
    check_duration("retention", claim.retention, claim.max_run, MAX_DURATION)?;
    check_count("max_crashes", claim.max_crashes)
}

/// Refuses a lease that is too short or too long.
pub fn check_lease(lease: Duration) -> Result<(), StoreError> {
    check_duration("lease", lease, SECOND, DAY)
}

/// Refuses a step with arguments out of bounds.
pub fn check_step(step: &Step) -> Result<(), StoreError> {
    check_step_name(step.name())?;
    match step.repeat() {
        Repeat::Within(window) => check_duration("window", window, SECOND, MAX_DURATION),
        Repeat::Always | Repeat::Ask | Repeat::Never => Ok(()),
    }
}

/// Refuses an invalid step name.
pub fn check_step_name(name: &str) -> Result<(), StoreError> {
    check_text("step", name)
}

/// Refuses a response or a result that is too large; returns the stored text of an accepted one. The limit is PostgreSQL's, including the
/// blanks that PostgreSQL writes.
pub fn check_json(name: &str, value: &Value) -> Result<String, StoreError> {
    match pg::to_json_text(value).len() {
        0..=pg::MAX_JSON_BYTES => Ok(value.to_string()),
        bytes => Err(StoreError::Refused(format!(
            "the {name} has {bytes} bytes; {} are allowed: keep what is large elsewhere, and its id here",
            pg::MAX_JSON_BYTES
        ))),
    }
}

/// Refuses a failure with arguments out of bounds.
pub fn check_failure(failure: &Failure<'_>) -> Result<(), StoreError> {
    check_count("max_attempts", failure.max_attempts)?;
    check_duration("delay", failure.delay, Duration::ZERO, MAX_DURATION)
}

/// Truncates an error to the part that is stored: 8,000 characters, without NUL.
pub fn truncate_error(error: &str) -> String {
    error.chars().filter(|character| *character != '\0').take(8_000).collect()
}
