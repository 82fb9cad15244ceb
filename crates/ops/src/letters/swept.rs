//! Results of a sweep.

use std::collections::BTreeSet;

use serde::Serialize;

use oncely_amqp::Topology;
use oncely_core::signing::SignatureError;

/// Results of a pass over one dead-letter queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// The queue that the letters came from.
    pub queue: String,
    /// Acknowledged: requeued, discarded, or an older copy.
    pub dropped: u64,
    /// Published to their queue again from here.
    pub requeued: u64,
    /// Published again to the end of the dead-letter queue.
    pub kept: u64,
    /// Of those: being requeued, and not published, since a copy would not be recognised as a duplicate.
    pub forgotten: u64,
    /// Of those: copies that can't be assigned to a letter.
    pub unreadable_marks: UnreadableMarks,
    /// Of those: a header names the tenant to erase, without a mark that proves it.
    #[serde(skip)]
    pub unproven: u64,
}

/// Copies with an unreadable mark, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnreadableMarks {
    /// Made with keys that this configuration does not have.
    unknown_key: u64,
    /// The ids of those keys, at most [`MAX_UNKNOWN_KEYS`].
    unknown_keys: BTreeSet<String>,
    /// Made by a program with another format of marks.
    unknown_version: u64,
    /// Made for another message, or not by Oncely.
    wrong: u64,
}

/// Maximum number of ids of unknown keys that are kept: any publisher to a dead-letter queue can make up ids.
const MAX_UNKNOWN_KEYS: usize = 8;

impl UnreadableMarks {
    /// Counts a copy with an unreadable mark.
    pub(crate) fn count_error(&mut self, error: &SignatureError) {
        match error {
            SignatureError::Version => self.unknown_version += 1,
            SignatureError::Malformed | SignatureError::Mismatch => self.wrong += 1,
            SignatureError::Key(id) => {
                self.unknown_key += 1;
                if self.unknown_keys.len() < MAX_UNKNOWN_KEYS {
                    self.unknown_keys.insert(id.clone());
                }
            }
        }
    }

    /// Returns the remedies for copies with unreadable marks, one line for each reason.
    pub fn advice(&self, queue: &str) -> Vec<String> {
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
