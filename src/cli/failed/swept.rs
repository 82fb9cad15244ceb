//! What a sweep did, as people and programs read it.

use std::collections::BTreeSet;

use serde::Serialize;

use super::super::output;
use crate::amqp::Topology;
use crate::signing::Unreadable;

/// What a pass over one dead-letter queue did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Swept {
    /// The queue that the letters came from.
    pub(super) queue: String,
    /// Acknowledged: requeued, discarded, or an older copy.
    pub(super) dropped: u64,
    /// Published to their queue again from here.
    pub(super) requeued: u64,
    /// Put behind the others.
    pub(super) kept: u64,
    /// Of those: being requeued, and not published, since nothing would recognise a copy.
    pub(super) forgotten: u64,
    /// Of those: nobody knows which letter they are.
    pub(super) unreadable_marks: UnreadableMarks,
}

/// Copies whose mark can't be read, by why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct UnreadableMarks {
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

impl Swept {
    /// Says it on stderr, and what is to be done.
    pub(super) fn report(&self) {
        let Self { queue, dropped, requeued, kept, forgotten, unreadable_marks } = self;
        let dead = Topology::dead_letter_queue(queue);
        output::note(&format!("swept {dead}: {dropped} gone, {requeued} requeued from there, {kept} stay"));
        if *forgotten > 0 {
            output::note(&format!(
                "! {forgotten} of an earlier requeue that was broken off were not published: their keys are not remembered any more \
                 (`oncely failed requeue --queue {queue} --dry-run` says what is known of them)"
            ));
        }
        unreadable_marks.advice(queue).iter().for_each(|line| output::note(line));
    }
}

impl UnreadableMarks {
    /// One more.
    pub(super) fn count(&mut self, why: &Unreadable) {
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
    fn advice(&self, queue: &str) -> Vec<String> {
        let keys: Vec<&str> = self.unknown_keys.iter().map(String::as_str).collect();
        let again = format!("run `oncely failed sweep --queue {queue}` again");
        let reasons = [
            (
                self.unknown_key,
                format!(
                    "marked with a signing key that this configuration does not have (id {}): add it to known_keys in [cell], and {again}",
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
