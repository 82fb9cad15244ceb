//! How large a response may be.

use serde_json::Value;

use super::call::Results;
use super::interrupt::Interrupt;
use crate::config::{Consumer, LargeResponse};
use crate::fault::{Fault, FaultClass};

/// Refuses responses over the consumer's limit: whatever their handlers did is rolled back.
pub(super) fn check_responses(consumer: &Consumer, results: &Results) -> Result<(), Interrupt> {
    if consumer.on_large_response == LargeResponse::Compress {
        return Ok(());
    }
    let limit = usize::try_from(consumer.response_limit).unwrap_or(usize::MAX);
    for response in results.iter().flatten().flatten() {
        let size = json_size(response);
        if size > limit {
            let text = format!(
                "the response has {size} bytes as JSON; the limit is {limit} (consumers.response_limit, consumers.on_large_response)"
            );
            return Err(Interrupt::Failed(Fault::new(FaultClass::Rejected, None, text)));
        }
    }
    Ok(())
}

/// Bytes of a value as JSON without white space.
fn json_size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // A writer that never fails, and a value that is JSON already.
    match serde_json::to_writer(&mut count, value) {
        Ok(()) => count.0,
        Err(_) => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_response_is_as_large_as_its_text() {
        let value = serde_json::json!({ "a": [1, "ü\n", null] });
        assert_eq!(super::json_size(&value), serde_json::to_string(&value).unwrap().len());
    }
}
