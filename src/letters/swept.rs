//! What a sweep did.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::amqp::Topology;
use crate::signing::Unreadable;

/// What a pass over one dead-letter queue did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Swept {
    /// The queue that the letters came from.
    pub(crate) queue: String,
    /// Acknowledged: requeued, discarded, or an older copy.
    pub(crate) dropped: u64,
    /// Published to their queue again from here.
    pub(crate) requeued: u64,
    /// Put behind the others.
    pub(crate) kept: u64,
    /// Of those: being requeued, and not published, since nothing would recognise a copy.
    pub(crate) forgotten: u64,
    /// Of those: nobody knows which letter they are.
    pub(crate) unreadable_marks: UnreadableMarks,
    /// Of those: a header names the tenant that is being erased, and no mark shows that it is so.
    #[serde(skip)]
    pub(crate) unproven: u64,
}

/// Copies whose mark can't be read, by why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct UnreadableMarks {
    /// Made with keys that this configuration does not have.
    unknown_key: u64,
    /// The ids of those keys, [`MOST_KEYS`] at the most.
    unknown_keys: BTreeSet<String>,
    /// Made by a program that writes marks in another way.
    unknown_version: u64,
    /// Made for another message, or not by Oncely.
    wrong: u64,
}

/// Anybody who may publish to a dead-letter queue can make up ids of keys.
const MOST_KEYS: usize = 8;

impl UnreadableMarks {
    /// One more.
    pub(crate) fn count(&mut self, why: &Unreadable) {
        match why {
            Unreadable::Version => self.unknown_version += 1,
            Unreadable::Malformed | Unreadable::Mismatch => self.wrong += 1,
            Unreadable::Key(id) => {
                self.unknown_key += 1;
                if self.unknown_keys.len() < MOST_KEYS {
                    self.unknown_keys.insert(id.clone());
                }
            }
        }
    }

    /// What to do about them, a line for each reason.
    pub(crate) fn advice(&self, queue: &str) -> Vec<String> {
        let keys: Vec<&str> = self.unknown_keys.iter().map(String::as_str).collect();
        let again = format!("run `oncely failed sweep --queue {queue}` again");
        let reasons = [
            (
                self.unknown_key,
                format!(
                    "marked with a key that is not accepted (id {}): if it was a configuration's, add it to known_keys in [cell], and {again}; \
                     one of the database is gone when its time is over (oncely secrets list): requeue or discard its letter, which needs no \
                     mark where the row has all of it, and remove the copy by hand",
                    keys.join(", ")
                ),
            ),
            (
                self.unknown_version,
                format!(
                    "marked in a version that this program does not know: with the program that wrote it, {again}"
                ),
            ),
            (
                self.wrong,
                format!(
                    "marked for another message, or forged: see who else may publish to {}",
                    Topology::dead_letter_queue(queue)
                ),
            ),
        ];
        let found = reasons.into_iter().filter(|(count, _)| *count > 0);
        found.map(|(count, reason)| format!("! {count} of those that stay: {reason}")).collect()
    }
}
