//! The file that a run's programs read.

use super::job::{Handler, QueueType};

/// A consumer's part of the configuration.
pub(crate) fn consumer(name: &str, queue: &str, queue_type: QueueType, handler: Handler) -> String {
    format!(
        "[[consumers]]\nname = {name:?}\nqueue = {queue:?}\nqueue_type = {:?}\ntenant = {{ header = \"x-tenant-id\" }}\n\
         key = {{ property = \"message_id\" }}\n{}\n",
        queue_type.name(),
        handler.line()
    )
}
