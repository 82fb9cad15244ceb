//! Bugs that can be planted, one at a time, to see that the checker finds them: a judge who never convicted anybody proves nothing
//! by an acquittal. Without the feature `plants`, which no release build has, there are none. `cargo xtask mutants` runs them.

/// The bugs: each is the right code without one of its cares.
pub const BUGS: [&str; 21] = [
    // Acknowledges a batch before anything of it is committed.
    "ack_before_commit",
    // Takes the COMMIT of an aborted transaction, which reports success, for one.
    "commit_tag_ignored",
    // Looks whether the key is there, runs, and writes the key afterwards: as without a unique index.
    "check_then_act",
    // Takes a lost race for a free key: a claim and its look-up in one statement see neither insert nor row.
    "claim_in_one_statement",
    // Sends an acknowledgement of a channel that is gone on its successor.
    "ack_on_stale_channel",
    // Acknowledges up to the last settled delivery, whatever lies before it.
    "ack_over_a_gap",
    // Deletes mirror records before it writes what they stand for.
    "relay_deletes_first",
    // Takes a confirm for an arrival: an unroutable message is confirmed too.
    "no_mandatory",
    // Reads the mirror queue by "id > last".
    "id_cursor",
    // Leaves the database's history out of the tags.
    "no_epoch",
    // Trusts the mirror although the database may lose reported commits.
    "trust_without_durability",
    // Collects keys whose mirror record is pending, and mirrors them afterwards.
    "collect_pending",
    // Takes a commit whose reply was lost for a failed one.
    "unknown_commit_is_failure",
    // Acknowledges an original before its copy is confirmed.
    "copy_unconfirmed",
    // Runs a redelivered message like any other.
    "never_isolate",
    // Takes another payload of a known key for a duplicate.
    "conflict_is_duplicate",
    // Counts an outage as the message's failure.
    "outage_spends_attempt",
    // Takes a missing table or grant for the message's fault.
    "environment_is_poison",
    // Deletes events before their publish is confirmed.
    "event_deleted_before_confirm",
    // Goes on with the later events of an ordering key after one has failed.
    "event_order_ignored",
    // Takes an event that the broker has returned for one that has arrived.
    "mandatory_ignored",
];

/// Is this bug planted? `PLANT=ack_before_commit` plants one.
#[cfg(feature = "plants")]
pub(crate) fn planted(bug: &'static str) -> bool {
    use std::sync::OnceLock;

    static CHOSEN: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(BUGS.contains(&bug), "{bug} is not in the list of bugs");
    let chosen = CHOSEN.get_or_init(|| {
        let chosen = std::env::var("PLANT").ok();
        if let Some(chosen) = &chosen
            && !BUGS.contains(&chosen.as_str())
        {
            eprintln!("no such bug to plant: {chosen}");
            std::process::exit(2);
        }
        chosen
    });
    chosen.as_deref() == Some(bug)
}

/// Is this bug planted? No.
#[cfg(not(feature = "plants"))]
#[inline(always)]
pub(crate) const fn planted(_: &'static str) -> bool {
    false
}
