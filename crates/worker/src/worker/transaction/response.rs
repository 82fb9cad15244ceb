//! Size limit of responses.

use crate::worker::interrupt::Interrupt;
use oncely_config::{ConsumerSettings, LargeResponse};
use oncely_core::fault::{Fault, FaultClass};

/// Refuses responses over the consumer's limit: all work of their handlers is rolled back.
pub(super) fn check_responses<'a>(
    consumer: &ConsumerSettings,
    responses: impl Iterator<Item = &'a String>,
) -> Result<(), Interrupt> {
    if consumer.on_large_response == LargeResponse::Compress {
        return Ok(());
    }
    let limit = usize::try_from(consumer.response_limit).unwrap_or(usize::MAX);
    for response in responses {
        let size = response.len();
        if size > limit {
            let text = format!(
                "the response has {size} bytes as JSON; the limit is {limit} (consumers.response_limit, consumers.on_large_response)"
            );
            return Err(Interrupt::Failed(Fault::new(FaultClass::Rejected, None, text)));
        }
    }
    Ok(())
}
