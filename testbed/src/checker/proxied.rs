//! Requests that a gateway sent on to a service that knows no keys, and L12: what clients were told against the service's books.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sqlx::{PgConnection, Row as _};

use super::calls::{Answer, Call};
use super::finding::{Findings, Invariant, What, name};
use super::ledger::Key;
use super::requests::Requests;

/// The consumer whose keys a gateway's requests have.
pub const PROXIED: &str = "proxied";

/// A service's answer that takes longer may come after the gateway has stopped waiting for it: `max_run` of the trial's gateways (18 s), less
/// the longest time for which one stands still between the beginning of its step and its request, in seconds.
const IN_TIME: f64 = 11.5;
/// So long after its call an answer may be on its way into the key's row: longer than any outage, in seconds.
const STORED: f64 = 40.0;

/// A key's row at the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProxiedRow {
    /// Its state.
    pub status: String,
    /// Why it is over, where it has failed.
    pub reason: String,
    /// A gateway holds it still.
    pub is_held: bool,
    /// Steps and trail of a key whose outcome is unknown, for the text of a finding.
    pub history: String,
}

/// Everything that the judgement of gateways is made of.
#[derive(Clone, Debug, Default)]
pub struct Proxied {
    /// What clients were answered.
    pub requests: Requests,
    /// The service's books, in the order in which calls came.
    pub calls: Vec<Call>,
    /// Rows by key.
    pub rows: BTreeMap<Key, ProxiedRow>,
    /// How often a person has said that a request was not carried out.
    pub refusals: BTreeMap<Key, usize>,
    /// When a gateway died, in seconds since 1970. No days go by there.
    pub deaths: Vec<f64>,
}

impl Proxied {
    /// Reads the keys.
    pub async fn read(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let rows = sqlx::query(
            "select tenant, key, status::text, coalesce(reason, ''), owner is not null,
                 case when reason = 'outcome_unknown' then format('steps %s, trail %s', steps, (
                     select string_agg(format('%s %s %s', extract(epoch from occurred_at)::numeric(13, 3), outcome, detail), '; ' order by occurred_at)
                     from oncely.audit as a
                     where a.tenant = i.tenant and a.consumer = i.consumer and a.key = i.key
                 )) else '' end
             from oncely.idempotency_keys as i where consumer = $1",
        )
        .bind(PROXIED)
        .fetch_all(connection)
        .await?;
        self.rows = rows
            .iter()
            .map(|row| {
                let (status, reason, is_held, history) = (row.get(2), row.get(3), row.get(4), row.get(5));
                ((row.get(0), row.get(1)), ProxiedRow { status, reason, is_held, history })
            })
            .collect();
        Ok(())
    }

    /// Was a request carried out?
    #[must_use]
    pub fn took_effect(&self, key: &Key) -> bool {
        self.calls.iter().any(|call| call.key == *key && call.has_effect())
    }

    pub(super) fn judge(&self, found: &mut Findings) {
        let mut by_key: BTreeMap<&Key, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_key.entry(&call.key).or_default().push(call);
        }
        for (key, calls) in &by_key {
            let effects = calls.iter().filter(|call| call.has_effect()).count();
            if effects > 1 {
                let text = format!("{}: {effects} effects", name(key));
                found.add(Invariant::L12, What::EffectRepeated, text);
            }
            // What the service has refused it may be sent again.
            let sent_on = calls.iter().filter(|call| call.answer != Answer::Refused).count();
            if sent_on > 1 + self.refusals.get(*key).copied().unwrap_or(0) {
                let text = format!("{}: sent on {sent_on} times", name(key));
                found.add(Invariant::L12, What::NeverRepeated, text);
            }
        }
        self.requests.judge_by(|key, _| self.took_effect(key), |_, _| false, found);
        for (key, status, body) in self.requests.bodies() {
            let said: Option<Value> = serde_json::from_slice(body).ok();
            let said = said.as_ref().and_then(|said| said["call"].as_str());
            // A person's yes has no body.
            let is_whole = status == 204 || said.is_some_and(|said| self.has_call(key, said));
            if !is_whole {
                let text = format!("{}: {} bytes", name(key), body.len());
                found.add(Invariant::L12, What::AnswerHalf, text);
            }
        }
        self.judge_rows(&by_key, found);
    }

    fn has_call(&self, key: &Key, call_key: &str) -> bool {
        self.calls.iter().any(|call| call.key == *key && call.call_key == call_key && call.has_effect())
    }

    fn judge_rows(&self, by_key: &BTreeMap<&Key, Vec<&Call>>, found: &mut Findings) {
        let none = Vec::new();
        for (key, row) in &self.rows {
            if row.is_held {
                found.add(Invariant::L8, What::NotDrained, format!("{} is held", name(key)));
            }
            let calls = by_key.get(key).unwrap_or(&none);
            let answers: BTreeSet<bool> = calls.iter().map(|call| call.answer == Answer::Done).collect();
            let is_late = |call: &&Call| call.answered.is_none_or(|answered| answered - call.at > IN_TIME);
            let died = |call: &&Call| self.deaths.iter().any(|at| (call.at..call.at + STORED).contains(at));
            // Each call had its whole answer in time, and its gateway lived on: the answer is stored in the end.
            if row.reason == "outcome_unknown"
                && answers == [true].into()
                && !calls.iter().copied().any(|call| died(&call) || is_late(&call))
            {
                let told: Vec<(f64, Option<f64>)> =
                    calls.iter().map(|call| (call.at, call.answered)).collect();
                let text = format!("{}: answered, and unknown; calls {told:?}, {}", name(key), row.history);
                found.add(Invariant::L12, What::UnjustifiedDeadLetter, text);
            }
            if row.status == "COMPLETED" && !self.took_effect(key) {
                found.add(Invariant::L12, What::Completions, format!("{}: completed in vain", name(key)));
            }
        }
    }
}
