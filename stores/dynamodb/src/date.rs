//! Estimates the server's time from the `Date` headers of answers that arrive within [`CLOCK_ERROR`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::config::interceptors::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_types::DateTime;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use aws_smithy_types::date_time::Format;

use crate::CLOCK_ERROR;

/// Offset of the server's clock from this machine's, in microseconds, shared by all clones. The error is half of the round trip plus half a
/// second: at most [`CLOCK_ERROR`].
#[derive(Clone, Debug)]
pub(crate) struct ServerDate(Arc<AtomicI64>);

const NOT_KNOWN: i64 = i64::MIN;

impl Default for ServerDate {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(NOT_KNOWN)))
    }
}

fn micros(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).ok().and_then(|time| i64::try_from(time.as_micros()).ok()).unwrap_or(0)
}

impl ServerDate {
    /// Returns the server's time in microseconds since 1970; `None` before the first usable answer.
    pub(crate) fn now(&self, here: SystemTime) -> Option<i64> {
        match self.0.load(Ordering::Relaxed) {
            NOT_KNOWN => None,
            ahead => Some(micros(here).saturating_add(ahead)),
        }
    }

    /// Updates the offset from a `Date` header, unless the answer was too slow. `here`: the local time at which the answer arrived; `took`:
    /// the time since the request was sent.
    fn update(&self, date: &str, here: SystemTime, took: Duration) {
        if took > CLOCK_ERROR {
            return;
        }
        if let Ok(date) = DateTime::from_str(date, Format::HttpDate) {
            let there = date.secs().saturating_mul(1_000_000).saturating_add(500_000);
            let half = i64::try_from(took.as_micros() / 2).unwrap_or(0);
            let written = micros(here).saturating_sub(half);
            self.0.store(there.saturating_sub(written), Ordering::Relaxed);
        }
    }
}

/// Time at which an attempt of a request was sent.
#[derive(Clone, Copy, Debug)]
struct Left(Instant);

impl Storable for Left {
    type Storer = StoreReplace<Self>;
}

impl Intercept for ServerDate {
    fn name(&self) -> &'static str {
        "ServerDate"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(Left(Instant::now()));
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        if let (Some(date), Some(Left(left))) = (date, config.load::<Left>()) {
            self.update(date, SystemTime::now(), left.elapsed());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;

    #[test]
    fn the_servers_time_goes_on_between_two_answers() {
        let (date, here) = (ServerDate::default(), UNIX_EPOCH + Duration::from_secs(1_000));
        assert_eq!(date.now(here), None);
        date.update("nonsense", here, AT_ONCE);
        assert_eq!(date.now(here), None);
        date.update("Thu, 01 Jan 1970 00:20:00 GMT", here, AT_ONCE);
        assert_eq!(date.now(here), Some(1_200_500_000));
        assert_eq!(date.now(here + Duration::from_secs(7)), Some(1_207_500_000));
    }

    #[test]
    fn an_answer_that_was_long_on_its_way_sets_no_clock() {
        let (date, here) = (ServerDate::default(), UNIX_EPOCH + Duration::from_secs(1_200));
        let said = "Thu, 01 Jan 1970 00:20:00 GMT";
        date.update(said, here, CLOCK_ERROR + Duration::from_millis(1));
        assert_eq!(date.now(here), None);
        // Written half a second before it came.
        date.update(said, here, CLOCK_ERROR);
        assert_eq!(date.now(here), Some(1_201_000_000));
        date.update(said, here + Duration::from_secs(60), Duration::from_secs(60));
        assert_eq!(date.now(here + Duration::from_secs(60)), Some(1_261_000_000), "a minute late");
    }
}
