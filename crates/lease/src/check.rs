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
/// Maximum duration of a lease.
pub(super) const DAY: Duration = Duration::from_secs(86_400);
const LONGEST: Duration = Duration::from_secs(3_650 * 86_400);
/// Maximum number of steps of a key.
pub(super) const MAX_STEPS: usize = 100;
/// Size in bytes of all results of a key from which no further step may begin.
pub(super) const MAX_STEP_BYTES: usize = 1_048_576;

fn time(name: &str, given: Duration, least: Duration, most: Duration) -> Result<(), StoreError> {
    if (least..=most).contains(&given) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{name} is {given:?}; it is {least:?} to {most:?}")))
}

fn count(name: &str, given: u32) -> Result<(), StoreError> {
    if (1..=10_000).contains(&given) {
        return Ok(());
    }
    Err(StoreError::Refused(format!("{name} is {given}; it is 1 to 10000")))
}

fn text(name: &str, given: &str) -> Result<(), StoreError> {
    IdentityPart::new(given.as_bytes())
        .map(drop)
        .map_err(|error| StoreError::Refused(format!("{name} {error}")))
}

/// Refuses a claim with arguments out of bounds.
pub fn check_claim(claim: &Claim<'_>) -> Result<(), StoreError> {
    text("owner", claim.owner)?;
    check_lease(claim.lease)?;
    time("max_run", claim.max_run, claim.lease, 30 * DAY)?;
    time("retention", claim.retention, claim.max_run, LONGEST)?;
    count("max_crashes", claim.max_crashes)
}

/// Refuses a lease that is too short or too long.
pub fn check_lease(lease: Duration) -> Result<(), StoreError> {
    time("lease", lease, SECOND, DAY)
}

/// Refuses a step with arguments out of bounds.
pub fn check_step(step: &Step) -> Result<(), StoreError> {
    check_step_name(step.name())?;
    match step.repeat() {
        Repeat::Within(window) => time("window", window, SECOND, LONGEST),
        Repeat::Always | Repeat::Ask | Repeat::Never => Ok(()),
    }
}

/// Refuses an invalid step name.
pub fn check_step_name(name: &str) -> Result<(), StoreError> {
    text("step", name)
}

/// Returns a response or a result as stored. Its limit is PostgreSQL's, including the blanks that PostgreSQL writes.
pub fn check_json(name: &str, value: &Value) -> Result<String, StoreError> {
    match pg::json_text(value).len() {
        0..=pg::LARGEST_JSON => Ok(value.to_string()),
        bytes => Err(StoreError::Refused(format!(
            "the {name} has {bytes} bytes; {} are allowed: keep what is large elsewhere, and its id here",
            pg::LARGEST_JSON
        ))),
    }
}

/// Refuses a failure with arguments out of bounds.
pub fn check_failure(failure: &Failure<'_>) -> Result<(), StoreError> {
    count("max_attempts", failure.max_attempts)?;
    time("delay", failure.delay, Duration::ZERO, LONGEST)
}

/// Returns the part of an error that is stored: 8,000 characters, without NUL.
pub fn stored_error(error: &str) -> String {
    error.chars().filter(|character| *character != '\0').take(8_000).collect()
}
