//! Names of Oncely's own headers. Publishers can set them, too: those that matter are signed ([`crate::signing`]).

/// Delay of a retried copy, by which the retry exchange routes. Not "x-…": a headers exchange ignores those.
pub const RUNG: &str = "oncely-rung";

/// Name of one published copy, by which a returned one is identified.
pub const COPY: &str = "x-oncely-copy";

/// Id of an event, which is also its `message_id`.
pub const EVENT: &str = "x-oncely-event";

/// A signed identity.
pub const IDENTITY: &str = "x-oncely-identity";

/// Row of a dead letter: `<id>/<generation>`.
pub const LETTER: &str = "x-oncely-dead-letter";

/// Proof that the worker wrote [`LETTER`] and [`TENANT`] for exactly this body.
pub const LETTER_MARK: &str = "x-oncely-dead-letter-mark";

/// Names of the original's headers that a copy could not keep.
pub const LEFT_OUT: &str = "x-oncely-headers-left-out";

/// Bytes of headers with too many values to be decoded.
pub const UNREAD: &str = "x-oncely-headers-unread";

/// Size of a body that is too large to be read. The message has no other headers then.
pub const UNREAD_BODY: &str = "x-oncely-body-unread";

// Headers of a dead letter. Tenant, key and attempt are absent if they are unknown.
#[doc(hidden)]
pub const ATTEMPT: &str = "x-oncely-attempt";
#[doc(hidden)]
pub const CONSUMER: &str = "x-oncely-consumer";
#[doc(hidden)]
pub const DETAIL: &str = "x-oncely-detail";
#[doc(hidden)]
pub const KEY: &str = "x-oncely-key";
#[doc(hidden)]
pub const QUEUE: &str = "x-oncely-queue";
#[doc(hidden)]
pub const REASON: &str = "x-oncely-reason";
#[doc(hidden)]
pub const TENANT: &str = "x-oncely-tenant";
#[doc(hidden)]
pub const WORKER: &str = "x-oncely-worker";

// The original's properties, which a copy can't keep as properties.
#[doc(hidden)]
pub const EXPIRATION: &str = "x-oncely-expiration";
#[doc(hidden)]
pub const ROUTING_KEY: &str = "x-oncely-routing-key";
#[doc(hidden)]
pub const USER_ID: &str = "x-oncely-user-id";

/// All of these headers.
pub const ALL: [&str; 20] = [
    RUNG,
    COPY,
    EVENT,
    IDENTITY,
    LETTER,
    LETTER_MARK,
    LEFT_OUT,
    UNREAD,
    UNREAD_BODY,
    ATTEMPT,
    CONSUMER,
    DETAIL,
    KEY,
    QUEUE,
    REASON,
    TENANT,
    WORKER,
    EXPIRATION,
    ROUTING_KEY,
    USER_ID,
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_book_names_each_header_and_no_other() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/rabbitmq.md");
        let page = std::fs::read_to_string(page).unwrap();
        let named: BTreeSet<&str> = page
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| word.starts_with("x-oncely-") || *word == RUNG)
            .collect();
        assert_eq!(named, BTreeSet::from(ALL));
    }
}
