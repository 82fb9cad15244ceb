//! What clients were told who asked over HTTP for what others send as messages, and L10.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Findings, Invariant, What, name};
use super::ledger::{Intent, Key, digest};

/// An answer that a client has read to its end.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// The last part of a problem's type.
    pub problem: Option<String>,
    /// Is it marked as one that was given before?
    pub replayed: bool,
    /// The body; `None`: the answer says that it was not kept.
    pub body: Option<Vec<u8>>,
}

impl HttpAnswer {
    /// Does it say that the request has taken effect, now or before?
    #[must_use]
    pub fn is_taken(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Does it say that the key is another payload's?
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.status == 422 && self.problem.as_deref() == Some("key-reused")
    }
}

/// A key, and the SHA-256 of a payload.
type Payload = (Key, String);

/// A status, and the body where it was kept.
type Told = (u16, Option<Vec<u8>>);

/// The clients' books.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// Different requests.
    pub asked: u64,
    /// Times that one was sent.
    pub tries: u64,
    /// The different final answers, whether replayed or not.
    answers: BTreeMap<Payload, BTreeSet<Told>>,
    /// Payloads whose key was another one's.
    conflicts: BTreeSet<Payload>,
    /// Answers that were given before.
    pub replays: u64,
    /// Answers that no table of statuses explains.
    unexpected: Vec<(Key, u16)>,
    /// Answers that a browser keeps from the page that has asked.
    unreadable: Vec<(Key, u16)>,
}

impl Requests {
    /// An answer has come.
    pub fn learn(&mut self, intent: &Intent, answer: &HttpAnswer) {
        let key = (intent.tenant.clone(), intent.key.clone());
        let this = (key.clone(), digest(&intent.body));
        self.replays += u64::from(answer.replayed);
        if answer.is_taken() {
            self.answers.entry(this).or_default().insert((answer.status, answer.body.clone()));
        } else if answer.is_conflict() {
            self.conflicts.insert(this);
        } else if !matches!(answer.status, 409 | 500 | 503) {
            self.unexpected.push((key, answer.status));
        }
    }

    /// An answer has come that does not let the page read it which has asked.
    pub fn learn_withheld(&mut self, intent: &Intent, status: u16) {
        self.unreadable.push(((intent.tenant.clone(), intent.key.clone()), status));
    }

    /// What clients have read as a whole that says that a request took effect: key, status, body.
    pub(super) fn bodies(&self) -> impl Iterator<Item = (&Key, u16, &[u8])> {
        self.answers.iter().flat_map(|((key, _), answers)| {
            answers.iter().filter_map(move |(status, body)| Some((key, *status, body.as_deref()?)))
        })
    }

    /// Requests that were told that they took effect.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answers.len() as u64
    }

    /// Those of them whose effect was a message's: what the handler answers to a request is a 201.
    #[must_use]
    pub fn of_messages(&self) -> u64 {
        self.answers.values().filter(|answers| answers.iter().any(|(status, _)| *status != 201)).count()
            as u64
    }

    /// `took`: has this payload of a key taken effect? `may_conflict`: may it be refused as another payload than the key's?
    pub(super) fn judge_by(
        &self,
        took: impl Fn(&Key, &str) -> bool,
        may_conflict: impl Fn(&Key, &str) -> bool,
        found: &mut Findings,
    ) {
        for ((key, digest), answers) in &self.answers {
            let kept: BTreeSet<&[u8]> = answers.iter().filter_map(|(_, body)| body.as_deref()).collect();
            let statuses: BTreeSet<u16> = answers.iter().map(|(status, _)| *status).collect();
            if kept.len() > 1 || statuses.len() > 1 {
                let statuses: Vec<String> = answers.iter().map(|(status, _)| status.to_string()).collect();
                let example = format!("{}: {}", name(key), statuses.join(", "));
                found.add(Invariant::L10, What::AnswersDiffer, example);
            }
            if !took(key, digest) {
                found.add(Invariant::L10, What::AnsweredInVain, name(key));
            }
        }
        for (key, digest) in &self.conflicts {
            if !may_conflict(key, digest) {
                found.add(Invariant::L10, What::AnswerUnexpected, format!("{}: no conflict", name(key)));
            }
        }
        for (key, status) in &self.unexpected {
            found.add(Invariant::L10, What::AnswerUnexpected, format!("{}: {status}", name(key)));
        }
        for (key, status) in &self.unreadable {
            found.add(Invariant::L10, What::AnswerWithheld, format!("{}: {status}", name(key)));
        }
    }

    /// These and those of another book.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.asked += other.asked;
        self.tries += other.tries;
        self.replays += other.replays;
        self.answers.extend(other.answers);
        self.conflicts.extend(other.conflicts);
        self.unexpected.extend(other.unexpected);
        self.unreadable.extend(other.unreadable);
        self
    }
}
