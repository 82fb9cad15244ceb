//! The names of the headers that Oncely writes. Whoever publishes may write them too: what counts is signed ([`crate::signing`]).

/// On a copy for later: which delay it takes. The retry exchange routes by it. Not "x-…": a headers exchange leaves those out of
/// its matching.
pub(crate) const RUNG: &str = "oncely-rung";

/// Names one published copy, so that a returned one is told from its neighbours.
pub(crate) const COPY: &str = "x-oncely-copy";

/// The event's id, which is its `message_id` too.
pub(crate) const EVENT: &str = "x-oncely-event";

/// A signed identity.
pub(crate) const IDENTITY: &str = "x-oncely-identity";

/// Names a dead letter's row: `<id>/<generation>`.
pub(crate) const LETTER: &str = "x-oncely-dead-letter";

/// Shows that the worker wrote [`LETTER`] and [`TENANT`] on this very body.
pub(crate) const LETTER_MARK: &str = "x-oncely-dead-letter-mark";

/// Names of the original's headers that a copy could not keep.
pub(crate) const LEFT_OUT: &str = "x-oncely-headers-left-out";

/// The bytes of headers that are too many to be read.
pub(crate) const UNREAD: &str = "x-oncely-headers-unread";

// What a dead letter says of itself. A tenant, a key and an attempt are missing where they are not known.
pub(crate) const ATTEMPT: &str = "x-oncely-attempt";
pub(crate) const CONSUMER: &str = "x-oncely-consumer";
pub(crate) const DETAIL: &str = "x-oncely-detail";
pub(crate) const KEY: &str = "x-oncely-key";
pub(crate) const QUEUE: &str = "x-oncely-queue";
pub(crate) const REASON: &str = "x-oncely-reason";
pub(crate) const TENANT: &str = "x-oncely-tenant";
pub(crate) const WORKER: &str = "x-oncely-worker";

// The original's properties, which a copy can't carry as such.
pub(crate) const EXPIRATION: &str = "x-oncely-expiration";
pub(crate) const ROUTING_KEY: &str = "x-oncely-routing-key";
pub(crate) const USER_ID: &str = "x-oncely-user-id";

/// All of them.
pub(crate) const ALL: [&str; 19] = [
    RUNG,
    COPY,
    EVENT,
    IDENTITY,
    LETTER,
    LETTER_MARK,
    LEFT_OUT,
    UNREAD,
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
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/reference/rabbitmq.md");
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
