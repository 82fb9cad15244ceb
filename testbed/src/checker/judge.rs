//! Holds what was sent against what is found.

use std::collections::BTreeSet;
use std::time::Duration;

use super::evidence::Evidence;
use super::finding::{Findings, Invariant, Violation, What, name};
use super::ledger::{Act, Class, FORGOTTEN, FRAGILE, Key, Sent, comes_back};
use super::letter::pairs;
use super::verdicts;

/// Longest time from a fault's end until the work goes on.
pub const RECOVERY_LIMIT: Duration = Duration::from_secs(30);

/// Most resident memory of a worker or relay, whatever is sent.
const MEMORY_LIMIT: u64 = 200_000_000;

/// Compares what was sent with what is found; empty where all is well.
#[must_use]
pub fn judge(sent: &Sent, evidence: &Evidence) -> Vec<Violation> {
    let mut found = Findings::default();
    judge_effects(sent, evidence, &mut found);
    judge_whereabouts(sent, evidence, &mut found);
    judge_dead_letters(sent, evidence, &mut found);
    judge_rows(evidence, &mut found);
    verdicts::judge(sent, evidence, &mut found);
    evidence.events.judge(&mut found);
    evidence.watched.judge(&mut found);
    evidence.leases.judge(&mut found);
    evidence.proxied.judge(&mut found);
    evidence.observed.judge(&mut found);
    judge_requests(sent, evidence, &mut found);
    judge_bounds(evidence, &mut found);
    found.0.sort_by_key(|violation| (violation.invariant, violation.what));
    found.0
}

/// L10, for work in PostgreSQL.
fn judge_requests(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    let took = |key: &Key, digest: &str| evidence.ran(key, digest) || evidence.took_effect_alike(key);
    let may_conflict = |key: &Key, digest: &str| {
        sent.versions(key).len() > 1 && (!evidence.ran(key, digest) || evidence.alike)
    };
    evidence.requests.judge_by(took, may_conflict, found);
}

/// I1, I8: how often each key took effect, and which of its payloads.
fn judge_effects(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    let none = Vec::new();
    for (key, sum) in &evidence.effects {
        let runs = evidence.runs.get(key).unwrap_or(&none);
        let payloads: BTreeSet<&str> = runs.iter().map(|(digest, _, _)| digest.as_str()).collect();
        let most = if comes_back(&key.0) { payloads.len() } else { 1 };
        if i64::try_from(most).is_ok_and(|most| *sum > most) || runs.len() > most {
            let who: Vec<String> =
                runs.iter().map(|(_, attempt, who)| format!("attempt {attempt} by {who}")).collect();
            found.add(Invariant::I1, What::Doubled, format!("{} {sum} times: {}", name(key), who.join(", ")));
        }
    }
    for key in evidence.effects.keys().chain(evidence.runs.keys()).collect::<BTreeSet<_>>() {
        let (sum, runs) = (evidence.effects.get(key).copied().unwrap_or(0), evidence.runs.get(key));
        let logged = runs.map_or(0, Vec::len);
        if i64::try_from(logged) != Ok(sum) {
            found.add(Invariant::I1, What::Books, format!("{}: sum {sum}, log {logged}", name(key)));
        }
        let digests: BTreeSet<&str> =
            runs.unwrap_or(&none).iter().map(|(digest, _, _)| digest.as_str()).collect();
        if digests.len() > 1 && !comes_back(&key.0) {
            found.add(Invariant::I8, What::ConflictRan, name(key));
        }
        for digest in digests {
            match sent.versions(key).iter().find(|version| version.digest == digest) {
                None => {
                    found.add(Invariant::I4, What::OrphanEffect, format!("{} (nobody sent it)", name(key)))
                }
                Some(version) => {
                    if !version.act.takes_effect() {
                        found.add(Invariant::I1, What::WrongEffect, name(key));
                    }
                    if version.class == Class::Refused {
                        found.add(Invariant::I1, What::RefusedEffect, name(key));
                    }
                }
            }
        }
    }
}

/// I2: nothing confirmed is nowhere; I11: nothing is still under way.
fn judge_whereabouts(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    let (dead, queued) = (pairs(&evidence.dead), pairs(&evidence.queued));
    for (key, versions) in sent.keys() {
        for version in versions.iter().filter(|version| version.class == Class::Confirmed) {
            let here = (key, version.digest.as_str());
            if evidence.ran(key, &version.digest)
                || dead.contains(&here)
                || evidence.discarded.contains(key)
                || (version.act == Act::Refuse && evidence.answered.contains(key))
                || evidence.took_effect_alike(key)
            {
                continue;
            }
            if queued.contains(&here) {
                found.add(Invariant::I11, What::NotDrained, name(key));
            } else {
                let status = evidence.status.get(key).map_or("no row", String::as_str);
                found.add(
                    Invariant::I2,
                    What::Lost,
                    format!("{} ({}, {status})", name(key), version.act.word()),
                );
            }
        }
    }
}

/// I1, I3: why each dead letter is there.
fn judge_dead_letters(sent: &Sent, evidence: &Evidence, found: &mut Findings) {
    for letter in &evidence.dead {
        let versions = sent.versions(&letter.key);
        let sent_as = versions.iter().find(|version| version.digest == letter.digest);
        let explained = sent_as.is_some_and(|version| {
            // Who comes back does so when nobody remembers the key.
            let conflict =
                versions.len() > 1 && letter.reason == "key_conflict" && !comes_back(&letter.key.0);
            let missing = version.act == Act::Branch
                && FRAGILE.contains(&letter.key.0.as_str())
                && letter.reason == "attempts_exhausted"
                && evidence.meanwhile.missing.iter().any(|(tenant, _, _)| *tenant == letter.key.0);
            conflict || missing || version.act.reason() == Some(letter.reason.as_str())
        });
        if !explained {
            let what = sent_as.map_or("nobody sent it", |version| version.act.word());
            let place =
                |digest: &str| versions.iter().position(|version| version.digest == digest).unwrap_or(999);
            let ran: Vec<String> = evidence.runs.get(&letter.key).map_or(Vec::new(), |runs| {
                runs.iter().map(|(digest, _, who)| format!("{} by {who}", place(digest))).collect()
            });
            found.add(
                Invariant::I1,
                What::UnexplainedDeadLetter,
                format!(
                    "{} ({what}): {}; payload {} of {:?}, took effect: {ran:?}",
                    name(&letter.key),
                    letter.reason,
                    place(&letter.digest),
                    versions.iter().map(|version| version.class).collect::<Vec<_>>()
                ),
            );
        }
        if evidence.ran(&letter.key, &letter.digest) {
            found.add(
                Invariant::I3,
                What::ProcessedAndDead,
                format!("{}: {}", name(&letter.key), letter.reason),
            );
        }
    }
}

/// I4: effects, keys and audit rows belong together.
fn judge_rows(evidence: &Evidence, found: &mut Findings) {
    let completed = |key: &Key| evidence.status.get(key).is_some_and(|status| status == "COMPLETED");
    // What is past its retention may be forgotten.
    let forgotten = |key: &Key| {
        evidence
            .retention
            .is_some_and(|(kept, _)| evidence.day_of.get(key).is_some_and(|day| evidence.days - day >= kept))
    };
    for key in evidence.effects.keys().filter(|key| !completed(key) && !forgotten(key)) {
        found.add(Invariant::I4, What::OrphanEffect, format!("{} (no completed key)", name(key)));
    }
    for (key, status) in &evidence.status {
        if status != "COMPLETED" {
            continue;
        }
        let refused = evidence.refused.get(key).copied().unwrap_or(0);
        if !evidence.effects.contains_key(key) && refused == 0 {
            found.add(Invariant::I4, What::OrphanKey, name(key));
        }
        // An answer, too, is given once.
        let audited = evidence.completed.get(key).copied().unwrap_or(0) + refused;
        // The trail remembers for longer than the key.
        let runs = evidence.runs.get(key).map_or(0, Vec::len);
        let is_known =
            key.0 == FORGOTTEN && audited >= 1 && usize::try_from(audited).is_ok_and(|all| all <= runs);
        if audited != 1 && !is_known {
            found.add(Invariant::I4, What::OrphanAudit, format!("{} has {audited} audit rows", name(key)));
        }
    }
    for key in evidence.completed.keys().filter(|key| !completed(key) && !forgotten(key)) {
        found.add(Invariant::I4, What::OrphanAudit, format!("{} has no completed key", name(key)));
    }
    for entry in &evidence.stale_mirror {
        found.add(Invariant::I5, What::StaleMirror, entry);
    }
    for key in &evidence.missing_mirror {
        found.add(Invariant::I5, What::MissingMirror, key);
    }
}

/// I10, I11, I12, I14.
fn judge_bounds(evidence: &Evidence, found: &mut Findings) {
    for text in evidence.fairness.starved() {
        found.add(Invariant::I12, What::Starved, text);
    }
    for text in &evidence.plaintext {
        found.add(Invariant::I14, What::Plaintext, text);
    }
    for text in &evidence.trespasses {
        found.add(Invariant::I14, What::Trespass, text);
    }
    for text in &evidence.books {
        found.add(Invariant::I1, What::Books, text);
    }
    if let Some((_, collected)) = evidence.retention {
        // The collection may be a day late.
        for (key, day) in &evidence.day_of {
            let age = evidence.days - day;
            if age > collected + 1 && evidence.status.get(key).is_some_and(|status| status == "COMPLETED") {
                found.add(Invariant::I10, What::Uncollected, format!("{} after {age} days", name(key)));
            }
        }
    }
    if evidence.unpartitioned != 0 {
        found.add(Invariant::I10, What::Unpartitioned, format!("{} rows", evidence.unpartitioned));
    }
    if evidence.mirror_queue != 0 {
        found.add(Invariant::I10, What::MirrorQueue, format!("{} records", evidence.mirror_queue));
    }
    if let Some((who, bytes)) = &evidence.memory
        && *bytes > MEMORY_LIMIT
    {
        found.add(Invariant::I10, What::Memory, format!("{who}: {} MiB", bytes >> 20));
    }
    for (fault, recovery) in &evidence.recoveries {
        match recovery {
            Some(took) if *took <= RECOVERY_LIMIT => {}
            Some(took) => found.add(Invariant::I11, What::NotRecovered, format!("{fault}: {took:.1?}")),
            None => found.add(Invariant::I11, What::NotRecovered, format!("{fault}: never")),
        }
    }
}
