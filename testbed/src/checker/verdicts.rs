//! Is each verdict justified? A dead letter's attempts lie on its ladder, however many copies there were; a death stands behind each
//! `crash`, a second payload behind each `key_conflict`, a missing schema behind what only that explains.

use super::evidence::Evidence;
use super::finding::{Findings, Invariant, What};
use super::ladder::{Ladder, Meanwhile, Step};
use super::ledger::{Act, Class, FRAGILE, Key, Sent};

/// So much too early a copy may come, in seconds: the clocks of different processes differ.
const GRAIN: f64 = 0.12;
/// Longest transaction, in seconds: a handler's deadline, and waits for locks.
const TRANSACTION: f64 = 60.0;
/// A schema is missing a little longer than the books say: what was under way ends later.
const AFTERMATH: f64 = 5.0;

/// What two transactions that meet are told: a serialization failure, a deadlock, a lock that is not to be had.
const CONTENTION: [&str; 3] = ["40001", "40P01", "55P03"];

/// I13.
pub(super) fn judge(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    for (key, steps) in &evidence.trail {
        // One act says so itself.
        if !sent.versions(key).iter().any(|version| version.act == Act::Serialize)
            && let Some(step) = steps.iter().find(|step| CONTENTION.contains(&step.code.as_str()))
        {
            let text = format!("{}/{}: {step} with {}", key.0, key.1, step.code);
            found.add(Invariant::I13, What::ContentionCharged, text);
        }
        let mut ladder: Vec<&Step> = Vec::new();
        for step in steps {
            if step.outcome != "dead_lettered" {
                // A key that was forgotten or requeued begins anew: that gives attempts, and takes none.
                if step.attempt == 1 {
                    ladder.clear();
                }
                ladder.push(step);
                continue;
            }
            // A copy of what was given up already is told the same again: it ran nothing.
            let again = (ladder.is_empty() || step.attempt == 0) && repeats(steps, step);
            if !again && let Some(why) = doubt(sent, &evidence.meanwhile, key, &ladder, step) {
                let trail: Vec<String> = steps.iter().map(Step::to_string).collect();
                let text = format!("{}/{}: {} {why} [{}]", key.0, key.1, step.reason, trail.join(", "));
                found.add(Invariant::I13, What::UnjustifiedDeadLetter, text);
            }
            // Another payload's verdict says nothing of this one's runs, nor does one that repeats another.
            if step.reason != "key_conflict" && step.attempt > 0 {
                ladder.clear();
            }
        }
    }
}

/// Is there a verdict that ran something, and said the same? Times are those of a transaction's begin: one that begins first may wait for
/// the verdict that it repeats.
fn repeats(steps: &[Step], again: &Step) -> bool {
    steps.iter().any(|step| {
        let is_verdict = step.outcome == "dead_lettered" && step.reason == again.reason;
        is_verdict && step.attempt > 0 && !std::ptr::eq(step, again) && step.at <= again.at + TRANSACTION
    })
}

/// What is wrong with a verdict.
fn doubt(sent: &Sent, meanwhile: &Meanwhile, key: &Key, ladder: &[&Step], verdict: &Step) -> Option<String> {
    match verdict.reason.as_str() {
        "key_conflict" => {
            let published = sent.versions(key).iter().filter(|version| version.class != Class::Refused);
            (published.count() < 2).then(|| "and no other payload was ever sent".to_owned())
        }
        "crash" => {
            let wanted = meanwhile.ladders.iter().map(|ladder| ladder.crashes).min().unwrap_or(3);
            let died = meanwhile.deaths.iter().filter(|death| **death <= verdict.at + 1.0).count();
            (died < wanted).then(|| format!("after {died} deaths of a process, not {wanted}"))
        }
        "attempts_exhausted" => doubt_ladder(meanwhile, key, ladder, verdict),
        // What was sent justifies these, which is judged message by message.
        "body_too_large" | "handler_rejected" | "headers_too_large" | "incomplete_claim" | "invalid_json"
        | "key_invalid" | "key_missing" | "parked" | "poison" | "signature_invalid" | "tenant_invalid"
        | "tenant_missing" => None,
        other => Some(format!(
            "with a reason that this consumer does not have (testbed/src/checker/verdicts.rs): {other}"
        )),
    }
}

fn doubt_ladder(meanwhile: &Meanwhile, key: &Key, ladder: &[&Step], verdict: &Step) -> Option<String> {
    let own = [Ladder::default()];
    let ladders = if meanwhile.ladders.is_empty() { &own[..] } else { &meanwhile.ladders };
    if !ladders.iter().any(|ladder| ladder.attempts == verdict.attempt) {
        return Some(format!("after {} attempts", verdict.attempt));
    }
    let steps: Vec<&Step> = ladder.iter().copied().chain([verdict]).collect();
    if i32::try_from(steps.len()) != Ok(verdict.attempt) {
        return Some(format!("at attempt {}, of which the trail has {}", verdict.attempt, steps.len()));
    }
    let jumped = |at: f64| meanwhile.jumps.iter().any(|(from, to)| at >= from - 10.0 && at <= to + 10.0);
    for pair in steps.windows(2) {
        let [before, after] = pair else { continue };
        let delay = ladders.iter().map(|ladder| ladder.after(before.attempt)).fold(f64::INFINITY, f64::min);
        let gap = after.at - before.at;
        if gap < delay - GRAIN && !jumped(before.at) && !jumped(after.at) {
            return Some(format!(
                "attempt {} came {gap:.3} s after the one before, not {delay} s",
                after.attempt
            ));
        }
    }
    if FRAGILE.contains(&key.0.as_str()) {
        // Nothing else is wrong with its messages.
        let missing = |at: f64| {
            meanwhile
                .missing
                .iter()
                .any(|(tenant, from, to)| *tenant == key.0 && at >= from - GRAIN && at <= to + AFTERMATH)
        };
        // Where all handlers break in the middle of a batch, messages that succeeded before are witnesses against those that fail after:
        // one attempt each time.
        let mut breaks: Vec<&(f64, f64)> = meanwhile.breaks.iter().collect();
        let mut is_of_a_break = |at: f64| {
            let found = breaks.iter().position(|(from, to)| at >= from - GRAIN && at <= to + AFTERMATH);
            found.map(|found| breaks.swap_remove(found)).is_some()
        };
        if let Some(step) = steps.iter().find(|step| !missing(step.at) && !is_of_a_break(step.at)) {
            return Some(format!(
                "attempt {} failed while its schema was there ({})",
                step.attempt, step.code
            ));
        }
    }
    None
}
