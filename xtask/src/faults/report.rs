//! What the trial found.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use testbed::checker::{RECOVERY_LIMIT, Requests, Sent, Watched, What};
use testbed::{Arena, Rare};

use crate::judgement::{self, Judgement};

/// What can be wrong with those who watch.
const WATCHERS: [What; 4] =
    [What::WatcherEnded, What::WatcherPanicked, What::WatcherWrong, What::WatcherSlow];

#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) faults: BTreeMap<String, u64>,
    /// Waited for a moment that did not come.
    pub(crate) missed: u64,
    sent: Sent,
    judgement: Judgement,
    recoveries: Vec<(String, Option<Duration>)>,
    dead_letters: usize,
    /// The longest time that a message which updates hot rows has waited while nothing was at fault.
    longest: Duration,
    mirrored: u64,
    effects: usize,
    memory: u64,
    events: EventFigures,
    days: i64,
    changes: Vec<String>,
    missing: usize,
    watched: Watched,
    leases: LeaseFigures,
    requests: Requests,
    /// What was asked through gateways, and how often the service was called.
    proxied: (Requests, u64),
    /// Names of the rare states that were reached.
    pub(crate) rare: BTreeSet<&'static str>,
}

/// What ran under leases.
#[derive(Debug)]
struct LeaseFigures {
    orders: u64,
    calls: u64,
    /// Keys that another run took over.
    takeovers: u64,
    /// Ends of runs that had lost their lease.
    fenced: u64,
    /// Messages that were given up because nobody knew what they had done.
    unknown: u64,
}

/// How many events.
#[derive(Debug)]
struct EventFigures {
    committed: u64,
    /// By the applications, on purpose.
    rolled_back: u64,
    /// Different ones that arrived.
    published: u64,
    /// Arrived again.
    repeats: u64,
}

impl Report {
    pub(crate) async fn collect(
        arena: &mut Arena,
        seed: u64,
        seconds: f64,
        faults: BTreeMap<String, u64>,
        missed: u64,
        changes: Vec<String>,
    ) -> anyhow::Result<Self> {
        let judgement = Judgement::of(arena).await?;
        let rare = arena.rare_states().await?;
        let evidence = &arena.evidence;
        Ok(Self {
            seed,
            rare,
            seconds,
            faults,
            missed,
            sent: arena.sent(),
            judgement,
            recoveries: evidence.recoveries.clone(),
            dead_letters: evidence.dead.len(),
            longest: evidence.fairness.longest,
            mirrored: evidence.mirrored,
            effects: evidence.effects.len(),
            events: EventFigures {
                committed: evidence.events.committed.len() as u64,
                rolled_back: arena.rolled_back,
                published: evidence.events.published(),
                repeats: evidence.events.repeats(),
            },
            days: evidence.days,
            changes,
            missing: evidence.meanwhile.missing.len(),
            watched: evidence.watched.clone(),
            leases: LeaseFigures {
                orders: evidence.leases.sent.distinct() as u64,
                calls: evidence.leases.calls.len() as u64,
                takeovers: evidence.leases.count("taken_over"),
                fenced: evidence.leases.count("fenced"),
                unknown: evidence.leases.unknown(),
            },
            requests: evidence.requests.clone().and(evidence.leases.requests.clone()),
            proxied: (evidence.proxied.requests.clone(), evidence.proxied.calls.len() as u64),
            memory: evidence.memory.as_ref().map_or(0, |(_, bytes)| *bytes),
        })
    }

    /// Is no invariant broken, but for those that are only told?
    pub(crate) fn is_good(&self, tolerated: &[String]) -> bool {
        self.judgement.is_good(tolerated)
    }

    /// The headline figures, by name.
    fn figures(&self) -> Vec<(&'static str, u64)> {
        let found = |what| self.judgement.count(&[what]);
        let found_any = |what: &[What]| self.judgement.count(what);
        vec![
            ("messages", self.sent.messages),
            ("distinct", self.sent.distinct() as u64),
            ("faults", self.faults.values().sum()),
            ("kinds", self.faults.len() as u64),
            ("lost", found(What::Lost)),
            ("doubled", found(What::Doubled)),
            ("orphans", self.judgement.orphans()),
            ("stale_mirror", found(What::StaleMirror)),
            ("unexplained_dead_letters", found(What::UnexplainedDeadLetter)),
            ("starved", found(What::Starved)),
            ("unjustified_dead_letters", found(What::UnjustifiedDeadLetter)),
            ("trespasses", found(What::Trespass)),
            ("watchers_failed", found_any(&WATCHERS)),
            ("days_simulated", u64::try_from(self.days).unwrap_or(0)),
            ("config_changes", self.changes.len() as u64),
            ("tenants_broken", self.missing as u64),
            ("events_committed", self.events.committed),
            ("events_published", self.events.published),
            ("events_lost", found(What::EventLost)),
            ("events_unowed", found(What::EventUnowed)),
            ("order_violations", found(What::EventOrder)),
            ("event_repeats", self.events.repeats),
            ("events_rolled_back", self.events.rolled_back),
            ("orders", self.leases.orders),
            ("calls", self.leases.calls),
            ("takeovers", self.leases.takeovers),
            ("fenced", self.leases.fenced),
            ("outcomes_unknown", self.leases.unknown),
            ("requests", self.requests.asked),
            ("requests_sent", self.requests.tries),
            ("requests_answered", self.requests.answered()),
            ("requests_replayed", self.requests.replays),
            ("requests_done_as_messages", self.requests.of_messages()),
            ("proxied", self.proxied.0.asked),
            ("proxied_sent", self.proxied.0.tries),
            ("proxied_answered", self.proxied.0.answered()),
            ("proxied_replayed", self.proxied.0.replays),
            ("proxied_calls", self.proxied.1),
        ]
    }

    /// The time within which 95 of 100 faults were recovered from.
    fn recovery(&self) -> f64 {
        let mut all: Vec<Duration> =
            self.recoveries.iter().map(|(_, took)| took.unwrap_or(RECOVERY_LIMIT * 2)).collect();
        all.sort();
        let at = (all.len() * 95).div_ceil(100).saturating_sub(1);
        all.get(at).map_or(0.0, |took| round(took.as_secs_f64()))
    }

    fn slowest(&self) -> Vec<String> {
        let mut all = self.recoveries.clone();
        all.sort_by_key(|(_, took)| std::cmp::Reverse(took.unwrap_or(Duration::MAX)));
        all.iter()
            .take(5)
            .map(|(fault, took)| match took {
                Some(took) => format!("{:.1} s after {fault}", took.as_secs_f64()),
                None => format!("never after {fault}"),
            })
            .collect()
    }

    fn table(&self) -> String {
        let figures =
            self.figures().into_iter().map(|(what, count)| (what.replace('_', " "), count.to_string()));
        let more = [
            ("keys with an effect", self.effects.to_string()),
            ("dead letters, explained or not", self.dead_letters.to_string()),
            ("mirror entries looked at", self.mirrored.to_string()),
            ("pages of the consoles, slowest (s)", self.pages()),
            ("unknown confirms", self.sent.unknown.to_string()),
            ("faults that waited in vain", self.missed.to_string()),
            ("most memory of a process (MiB)", (self.memory >> 20).to_string()),
            ("recovery, 95th percentile (s)", self.recovery().to_string()),
            ("seed", self.seed.to_string()),
            ("seconds", format!("{:.0}", self.seconds)),
        ];
        let more = more.map(|(what, figure)| (what.to_owned(), figure));
        let slowest: String = self.slowest().iter().map(|slow| format!("\n  {slow}")).collect();
        let rare = Rare::ALL.map(|state| {
            let is_reached = if self.rare.contains(state.name) { "yes" } else { "no" };
            (state.what.to_owned(), is_reached.to_owned())
        });
        let rare = judgement::table(rare);
        judgement::table(figures.chain(more)) + "\nrare states\n" + &rare + &slowest + &self.judgement.lines()
    }

    fn json(&self) -> BTreeMap<&'static str, Value> {
        let figures = self.figures().into_iter().map(|(name, count)| (name, json!(count)));
        let more = [
            ("recovery_p95_seconds", json!(self.recovery())),
            ("recovery_slowest", json!(self.slowest())),
            ("seed", json!(self.seed)),
            ("seconds", json!(round(self.seconds))),
            ("unknown_confirms", json!(self.sent.unknown)),
            ("refused_confirms", json!(self.sent.refused)),
            ("dead_letters", json!(self.dead_letters)),
            ("effects", json!(self.effects)),
            ("mirror_entries", json!(self.mirrored)),
            ("missed", json!(self.missed)),
            (
                "rare_states",
                json!(
                    Rare::ALL
                        .map(|state| (state.name, self.rare.contains(state.name)))
                        .into_iter()
                        .collect::<BTreeMap<_, _>>()
                ),
            ),
            ("longest_wait_of_hot_rows_seconds", json!(round(self.longest.as_secs_f64()))),
            ("changes", json!(self.changes)),
            ("faults_by_kind", json!(self.faults)),
            ("watchers", self.watchers()),
        ];
        figures.chain(more).chain(self.judgement.json()).collect()
    }

    /// How many pages were read, and how long the slowest took.
    fn pages(&self) -> String {
        let slowest = self.watched.slowest.as_ref().map_or(0.0, |(took, _)| round(took.as_secs_f64()));
        format!("{}, {slowest}", self.watched.pages.values().sum::<u64>())
    }

    fn watchers(&self) -> Value {
        let watched = &self.watched;
        let wrong: Vec<String> =
            watched.wrong.iter().take(20).map(|(what, text)| format!("{}: {text}", what.name())).collect();
        json!({
            "pages": watched.pages.values().sum::<u64>(),
            "by_status": watched.pages,
            "slowest_seconds": watched.slowest.as_ref().map(|(took, _)| round(took.as_secs_f64())),
            "slowest_page": watched.slowest.as_ref().map(|(_, path)| path),
            "decisions_followed": watched.followed,
            "requeues": watched.requeues.0,
            "letters_requeued": watched.requeues.1,
            "lines_of_top": watched.lines,
            "exits": watched.ends,
            "wrong": wrong,
        })
    }

    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        judgement::print(&self.table(), json.then(|| self.json()).as_ref())
    }
}

fn round(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}
