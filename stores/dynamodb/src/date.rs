//! What time it is at the server, by the `Date` of its answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_types::DateTime;
use aws_smithy_types::date_time::Format;

/// How far the server is ahead of this machine, in microseconds; its copies are one. Half a second is what a `Date` lacks in the middle.
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
    /// In microseconds since 1970; `None` before the first answer.
    pub(crate) fn now(&self, here: SystemTime) -> Option<i64> {
        match self.0.load(Ordering::Relaxed) {
            NOT_KNOWN => None,
            ahead => Some(micros(here).saturating_add(ahead)),
        }
    }

    fn learn(&self, date: &str, here: SystemTime) {
        if let Ok(date) = DateTime::from_str(date, Format::HttpDate) {
            let there = date.secs().saturating_mul(1_000_000).saturating_add(500_000);
            self.0.store(there.saturating_sub(micros(here)), Ordering::Relaxed);
        }
    }
}

impl Intercept for ServerDate {
    fn name(&self) -> &'static str {
        "ServerDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date") {
            self.learn(date, SystemTime::now());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_servers_time_goes_on_between_two_answers() {
        let (date, here) = (ServerDate::default(), UNIX_EPOCH + Duration::from_secs(1_000));
        assert_eq!(date.now(here), None);
        date.learn("nonsense", here);
        assert_eq!(date.now(here), None);
        date.learn("Thu, 01 Jan 1970 00:20:00 GMT", here);
        assert_eq!(date.now(here), Some(1_200_500_000));
        assert_eq!(date.now(here + Duration::from_secs(7)), Some(1_207_500_000));
    }
}
