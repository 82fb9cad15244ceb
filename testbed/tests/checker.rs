//! The judge sees what is wrong, and names it: a judge that finds nothing proves nothing.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use testbed::checker::events::{Arrival, Emitted, Events};
use testbed::checker::mirror::{Entry, entries, stale};
use testbed::checker::{
    Act, Class, Evidence, Fairness, Intent, Invariant, Key, Ladder, Letter, Sent, Step, What, digest, judge,
};
use testbed::{Database, Servers};

fn key(name: &str) -> Key {
    ("acme".to_owned(), name.to_owned())
}

fn intent(name: &str, act: Act, version: u32) -> Intent {
    Intent::new("acme", name, act, version)
}

fn letter(intent: &Intent, reason: &str) -> Letter {
    let key = (intent.tenant.clone(), intent.key.clone());
    Letter { key, digest: digest(&intent.body), reason: reason.to_owned() }
}

fn sent(intents: &[(&Intent, Class)]) -> Sent {
    let mut sent = Sent::default();
    for (intent, class) in intents {
        sent.intend(intent);
        sent.learn(intent, *class);
    }
    sent
}

/// One effect, with everything that belongs to it.
fn took_effect(evidence: &mut Evidence, intent: &Intent) {
    let key = key(&intent.key);
    *evidence.effects.entry(key.clone()).or_default() += 1;
    evidence.runs.entry(key.clone()).or_default().push((digest(&intent.body), 1, "worker-1".to_owned()));
    evidence.status.insert(key.clone(), "COMPLETED".to_owned());
    evidence.completed.insert(key, 1);
}

fn found(sent: &Sent, evidence: &Evidence) -> BTreeMap<(Invariant, What), u64> {
    judge(sent, evidence).into_iter().map(|v| ((v.invariant, v.what), v.count)).collect()
}

/// A trial in which everything went as it should: work, a failure of each kind, a conflict, an unknown confirm.
fn good() -> (Sent, Evidence) {
    let mut evidence = Evidence::default();
    let [a, b] = ["a", "b"].map(|name| intent(name, Act::Work, 0));
    let (reject, divide, fail) =
        (intent("r", Act::Reject, 0), intent("d", Act::Divide, 0), intent("f", Act::Fail, 0));
    let (winner, loser) = (intent("c", Act::Work, 0), intent("c", Act::Work, 1));
    let unknown = intent("u", Act::Work, 0);
    let books = sent(&[
        (&a, Class::Confirmed),
        (&a, Class::Confirmed),
        (&b, Class::Confirmed),
        (&reject, Class::Confirmed),
        (&divide, Class::Confirmed),
        (&fail, Class::Confirmed),
        (&winner, Class::Confirmed),
        (&loser, Class::Confirmed),
        (&unknown, Class::Unknown),
    ]);
    for one in [&a, &b, &winner] {
        took_effect(&mut evidence, one);
    }
    for (one, reason) in [
        (&reject, "handler_rejected"),
        (&divide, "poison"),
        (&fail, "attempts_exhausted"),
        (&loser, "key_conflict"),
    ] {
        evidence.dead.insert(letter(one, reason));
    }
    evidence.recoveries.push(("kill_worker".to_owned(), Some(Duration::from_secs(1))));
    (books, evidence)
}

#[test]
fn a_good_trial_is_good() {
    let (sent, evidence) = good();
    assert_eq!(judge(&sent, &evidence), []);
}

#[test]
fn an_unknown_confirm_may_have_taken_effect_but_not_twice() {
    let (sent, mut evidence) = good();
    took_effect(&mut evidence, &intent("u", Act::Work, 0));
    assert_eq!(judge(&sent, &evidence), []);
    took_effect(&mut evidence, &intent("u", Act::Work, 0));
    assert_eq!(found(&sent, &evidence), [((Invariant::I1, What::Doubled), 1)].into());
}

#[test]
fn a_lost_message_is_named_and_one_that_waits_is_not_lost() {
    let (sent, mut evidence) = good();
    for books in [&mut evidence.effects, &mut evidence.completed] {
        books.remove(&key("a"));
    }
    evidence.runs.remove(&key("a"));
    evidence.status.remove(&key("a"));
    assert_eq!(found(&sent, &evidence), [((Invariant::I2, What::Lost), 1)].into());
    assert!(judge(&sent, &evidence)[0].to_string().contains("acme/a"));
    evidence.queued.insert(letter(&intent("a", Act::Work, 0), ""));
    assert_eq!(found(&sent, &evidence), [((Invariant::I11, What::NotDrained), 1)].into());
}

#[test]
fn the_other_payload_of_a_conflict_is_lost_where_it_is_nowhere() {
    let (sent, mut evidence) = good();
    evidence.dead.remove(&letter(&intent("c", Act::Work, 1), "key_conflict"));
    assert_eq!(found(&sent, &evidence), [((Invariant::I2, What::Lost), 1)].into());
}

#[test]
fn a_doubled_effect_is_named_however_it_was_booked() {
    let (sent, mut evidence) = good();
    took_effect(&mut evidence, &intent("a", Act::Work, 0));
    assert_eq!(found(&sent, &evidence), [((Invariant::I1, What::Doubled), 1)].into());

    let (sent, mut evidence) = good();
    evidence.effects.insert(key("a"), 2);
    let both = [((Invariant::I1, What::Doubled), 1), ((Invariant::I1, What::Books), 1)];
    assert_eq!(found(&sent, &evidence), both.into());
}

#[test]
fn two_payloads_of_one_key_must_not_both_run() {
    let (sent, mut evidence) = good();
    took_effect(&mut evidence, &intent("c", Act::Work, 1));
    let all = found(&sent, &evidence);
    assert!(all.contains_key(&(Invariant::I8, What::ConflictRan)), "{all:?}");
    assert!(all.contains_key(&(Invariant::I3, What::ProcessedAndDead)), "{all:?}");
}

#[test]
fn orphans_are_named_whichever_side_is_missing() {
    let (sent, mut evidence) = good();
    evidence.status.remove(&key("a"));
    evidence.completed.remove(&key("a"));
    assert_eq!(found(&sent, &evidence), [((Invariant::I4, What::OrphanEffect), 1)].into());

    let (sent, mut evidence) = good();
    evidence.status.insert(key("r"), "COMPLETED".to_owned());
    evidence.completed.insert(key("r"), 1);
    assert_eq!(found(&sent, &evidence), [((Invariant::I4, What::OrphanKey), 1)].into());

    let (sent, mut evidence) = good();
    evidence.completed.insert(key("a"), 2);
    evidence.completed.insert(key("nobody"), 1);
    assert_eq!(found(&sent, &evidence), [((Invariant::I4, What::OrphanAudit), 2)].into());

    let (sent, mut evidence) = good();
    took_effect(&mut evidence, &intent("never sent", Act::Work, 0));
    assert_eq!(found(&sent, &evidence), [((Invariant::I4, What::OrphanEffect), 1)].into());
}

#[test]
fn a_dead_letter_must_be_explained_by_what_was_sent() {
    for (name, act, reason) in [
        ("a", Act::Work, "attempts_exhausted"),
        ("r", Act::Reject, "poison"),
        ("a", Act::Work, "key_conflict"),
        ("a", Act::Work, "broker: delivery_limit"),
        ("never sent", Act::Reject, "handler_rejected"),
    ] {
        let (sent, mut evidence) = good();
        evidence.dead.insert(letter(&intent(name, act, 0), reason));
        let all = found(&sent, &evidence);
        assert_eq!(all.get(&(Invariant::I1, What::UnexplainedDeadLetter)), Some(&1), "{name} {reason}");
    }
}

#[test]
fn an_effect_of_what_was_to_fail_or_was_refused_is_named() {
    let (sent, mut evidence) = good();
    took_effect(&mut evidence, &intent("r", Act::Reject, 0));
    assert!(found(&sent, &evidence).contains_key(&(Invariant::I1, What::WrongEffect)));

    let one = intent("x", Act::Work, 0);
    let mut evidence = Evidence::default();
    took_effect(&mut evidence, &one);
    let sent = self::sent(&[(&one, Class::Refused)]);
    assert_eq!(found(&sent, &evidence), [((Invariant::I1, What::RefusedEffect), 1)].into());
}

#[test]
fn what_never_ends_is_named() {
    let (sent, mut evidence) = good();
    evidence.mirror_queue = 3;
    evidence.memory = Some(("worker-1".to_owned(), 2 << 30));
    evidence.recoveries.push(("cut_redis".to_owned(), None));
    evidence.recoveries.push(("cut_postgres".to_owned(), Some(Duration::from_secs(31))));
    let expected = [
        ((Invariant::I10, What::MirrorQueue), 1),
        ((Invariant::I10, What::Memory), 1),
        ((Invariant::I11, What::NotRecovered), 2),
    ];
    assert_eq!(found(&sent, &evidence), expected.into());
}

/// Rows of the trail at these moments: failed runs, and the verdict at last.
fn ladder(reason: &str, moments: &[f64]) -> Vec<Step> {
    let last = moments.len() - 1;
    let step = |(number, at): (usize, &f64)| Step {
        outcome: if number == last { "dead_lettered" } else { "retried" }.to_owned(),
        attempt: i32::try_from(number).unwrap() + 1,
        reason: if number == last { reason } else { "" }.to_owned(),
        code: "P0001".to_owned(),
        at: *at,
    };
    moments.iter().enumerate().map(step).collect()
}

/// Each on its ladder of 200 ms, 1 s, 1 s, 1 s.
const SLOWLY: [f64; 5] = [100.0, 100.21, 101.25, 102.3, 103.4];

/// What is found where this is the trail of the message that always fails.
fn found_of_trail(steps: Vec<Step>) -> BTreeMap<(Invariant, What), u64> {
    let (sent, mut evidence) = good();
    evidence.trail.insert(key("f"), steps);
    found(&sent, &evidence)
}

fn unjustified(count: u64) -> BTreeMap<(Invariant, What), u64> {
    [((Invariant::I13, What::UnjustifiedDeadLetter), count)].into()
}

#[test]
fn attempts_that_lie_on_their_ladder_justify_a_verdict() {
    assert_eq!(found_of_trail(ladder("attempts_exhausted", &SLOWLY)), BTreeMap::new());
    // A copy is told the verdict again, and a day later somebody requeues it in vain.
    let mut steps = ladder("attempts_exhausted", &SLOWLY);
    steps.push(Step { at: 110.0, ..steps[4].clone() });
    steps.extend(ladder("attempts_exhausted", &SLOWLY.map(|at| at + 86_400.0)));
    assert_eq!(found_of_trail(steps.clone()), BTreeMap::new());
    // A copy whose transaction began first, and waited for the verdict's.
    let mut waited = ladder("attempts_exhausted", &SLOWLY);
    waited.insert(4, Step { attempt: 0, at: waited[4].at - 0.1, ..waited[4].clone() });
    assert_eq!(found_of_trail(waited.clone()), BTreeMap::new());
    waited[4].reason = "crash".to_owned();
    assert_eq!(found_of_trail(waited), unjustified(1), "nothing says why");
    // A copy that comes when the key is forgotten begins anew.
    let mut twice = steps[..2].to_vec();
    twice.extend(ladder("attempts_exhausted", &SLOWLY.map(|at| at + 864_000.0)));
    assert_eq!(found_of_trail(twice), BTreeMap::new());
}

#[test]
fn attempts_that_copies_have_spent_at_once_do_not() {
    let fast = [100.0, 100.05, 100.1, 100.15, 100.2];
    assert_eq!(found_of_trail(ladder("attempts_exhausted", &fast)), unjustified(1));
    let mut once_too_soon = SLOWLY;
    once_too_soon[3] = 101.5;
    assert_eq!(found_of_trail(ladder("attempts_exhausted", &once_too_soon)), unjustified(1));
    assert_eq!(found_of_trail(ladder("attempts_exhausted", &SLOWLY[..3])), unjustified(1), "too few of them");
}

#[test]
fn another_ladder_and_a_clock_that_was_set_back_are_no_injustice() {
    let (sent, mut evidence) = good();
    evidence.trail.insert(key("f"), ladder("attempts_exhausted", &[100.0, 100.21, 100.72, 101.8, 102.9]));
    assert_eq!(found(&sent, &evidence), unjustified(1));
    let other = Ladder { delays: vec![0.2, 0.5, 1.0], ..Ladder::default() };
    evidence.meanwhile.ladders = vec![Ladder::default(), other];
    assert_eq!(found(&sent, &evidence), BTreeMap::new());

    evidence.trail.insert(key("f"), ladder("attempts_exhausted", &[100.0, 100.21, 101.25, 99.3, 100.4]));
    assert_eq!(found(&sent, &evidence), unjustified(1));
    evidence.meanwhile.jumps.push((101.0, 103.0));
    assert_eq!(found(&sent, &evidence), BTreeMap::new());
}

#[test]
fn a_crash_without_deaths_and_a_conflict_without_another_payload_are_unjustified() {
    let crash = |deaths: &[f64]| {
        let (sent, mut evidence) = good();
        evidence.trail.insert(key("f"), ladder("crash", &[100.0]));
        evidence.meanwhile.deaths = deaths.to_vec();
        found(&sent, &evidence)
    };
    assert_eq!(crash(&[90.0, 95.0, 99.0]), BTreeMap::new());
    assert_eq!(crash(&[90.0, 95.0, 110.0]), unjustified(1), "the third came later");

    let conflict = |name: &str| {
        let (sent, mut evidence) = good();
        evidence.trail.insert(key(name), ladder("key_conflict", &[100.0]));
        found(&sent, &evidence)
    };
    assert_eq!(conflict("c"), BTreeMap::new());
    assert_eq!(conflict("a"), unjustified(1));
}

#[test]
fn what_only_a_missing_schema_explains_must_have_failed_while_it_was_missing() {
    let of = |missing: &[(String, f64, f64)]| {
        let intent = Intent::new("branch_0", "b", Act::Branch, 0);
        let key = ("branch_0".to_owned(), "b".to_owned());
        let sent = sent(&[(&intent, Class::Confirmed)]);
        let mut evidence = Evidence::default();
        evidence.dead.insert(letter(&intent, "attempts_exhausted"));
        evidence.trail.insert(key, ladder("attempts_exhausted", &SLOWLY));
        evidence.meanwhile.missing = missing.to_vec();
        found(&sent, &evidence)
    };
    let missing = |from, to| ("branch_0".to_owned(), from, to);
    assert_eq!(of(&[missing(99.0, 104.0)]), BTreeMap::new());
    assert_eq!(of(&[missing(101.0, 104.0)]), unjustified(1));
    let never = of(&[]);
    assert!(never.contains_key(&(Invariant::I1, What::UnexplainedDeadLetter)), "{never:?}");
}

/// Who starved, where acme has ten messages to do, globex more and more, and `done` says how many are done at each second.
fn starved(seconds: u64, done: impl Fn(u64, &str) -> u64) -> Vec<String> {
    let mut fairness = Fairness::default();
    for second in 0..seconds {
        let due = BTreeMap::from([("acme".to_owned(), 10), ("globex".to_owned(), 40 + 5 * second)]);
        let all = ["acme", "globex"].map(|tenant| (tenant.to_owned(), done(second, tenant)));
        fairness.look(Duration::from_secs(second), &due, &BTreeMap::from(all));
    }
    fairness.starved().to_vec()
}

#[test]
fn a_tenant_that_others_overtake_is_starved() {
    let none = Vec::<String>::new();
    assert_eq!(starved(29, |second, tenant| if tenant == "acme" { second / 3 } else { 5 * second }), none);
    let one = starved(29, |second, tenant| if tenant == "acme" { 0 } else { 5 * second });
    assert_eq!(one.len(), 1, "{one:?}");
    assert!(one[0].starts_with("acme"), "{one:?}");
    // Who has nothing left to do waits for nothing; and who is behind others in the queue is not overtaken.
    assert_eq!(starved(60, |second, tenant| if tenant == "acme" { 10 } else { 5 * second }), none);
    assert_eq!(starved(29, |second, tenant| if tenant == "acme" { 0 } else { second }), none);
}

#[test]
fn a_stop_of_all_is_starvation_after_a_while_and_not_while_a_fault_holds() {
    assert_eq!(starved(29, |_, _| 0), Vec::<String>::new());
    assert_eq!(starved(40, |_, _| 0).len(), 2);

    let mut fairness = Fairness::default();
    let due = BTreeMap::from([("acme".to_owned(), 10)]);
    for second in 0..100 {
        match second {
            5 => fairness.fault(),
            75 => fairness.healed(),
            _ => fairness.look(Duration::from_secs(second), &due, &BTreeMap::new()),
        }
    }
    assert_eq!(fairness.starved(), Vec::<String>::new().as_slice());

    let (sent, mut evidence) = good();
    for second in 100..140 {
        fairness.look(Duration::from_secs(second), &due, &BTreeMap::new());
    }
    evidence.fairness = fairness;
    assert_eq!(found(&sent, &evidence), [((Invariant::I12, What::Starved), 1)].into());
}

#[test]
fn a_key_may_be_forgotten_after_its_retention_and_not_before() {
    let forgotten = |days| {
        let (sent, mut evidence) = good();
        evidence.status.remove(&key("a"));
        evidence.completed.remove(&key("a"));
        evidence.day_of.insert(key("a"), 0);
        (evidence.days, evidence.retention) = (days, Some((10, 10)));
        found(&sent, &evidence)
    };
    assert_eq!(forgotten(10), BTreeMap::new());
    assert_eq!(forgotten(9), [((Invariant::I4, What::OrphanEffect), 1)].into());

    let remembered = |days| {
        let (sent, mut evidence) = good();
        evidence.day_of.insert(key("a"), 0);
        (evidence.days, evidence.retention) = (days, Some((10, 10)));
        found(&sent, &evidence)
    };
    assert_eq!(remembered(11), BTreeMap::new());
    assert_eq!(remembered(20), [((Invariant::I10, What::Uncollected), 1)].into());
}

#[test]
fn a_discarded_message_is_not_lost_and_a_trespass_is_named() {
    let (sent, mut evidence) = good();
    evidence.dead.remove(&letter(&intent("r", Act::Reject, 0), "handler_rejected"));
    assert_eq!(found(&sent, &evidence), [((Invariant::I2, What::Lost), 1)].into());
    evidence.discarded.insert(key("r"));
    assert_eq!(found(&sent, &evidence), BTreeMap::new());
    evidence.trespasses.push("oncely_worker ran format".to_owned());
    assert_eq!(found(&sent, &evidence), [((Invariant::I14, What::Trespass), 1)].into());
}

/// Two ordered events and one of no order, all of which committed and arrived.
fn told() -> Events {
    let mut events = Events::default();
    for (id, place) in [("e1", Some(1)), ("e2", Some(2)), ("e3", Some(4)), ("f1", None)] {
        let place = place.map(|number| ("acme/order-1".to_owned(), number));
        events.committed.insert(id.to_owned(), Emitted { digest: digest(id.as_bytes()), place });
    }
    events.arrived = vec![arrivals(&["e1", "e2", "e3"]), arrivals(&["f1"])];
    events
}

fn arrivals(ids: &[&str]) -> Vec<Arrival> {
    ids.iter().map(|id| Arrival { id: (*id).to_owned(), digest: digest(id.as_bytes()) }).collect()
}

/// What is found where only the events are wrong.
fn found_of(events: Events) -> BTreeMap<(Invariant, What), u64> {
    let (sent, mut evidence) = good();
    evidence.events = events;
    found(&sent, &evidence)
}

#[test]
fn an_event_may_come_again_and_keeps_the_place_of_its_first_time() {
    let mut events = told();
    events.arrived[0] = arrivals(&["e1", "e1", "e2", "e1", "e3", "e2"]);
    assert_eq!((events.published(), events.repeats()), (4, 3));
    assert_eq!(found_of(events), BTreeMap::new());
}

#[test]
fn an_event_that_committed_and_is_nowhere_is_lost_and_one_that_waits_is_not() {
    let mut events = told();
    events.arrived[0] = arrivals(&["e1", "e2"]);
    events.arrived[1] = Vec::new();
    assert_eq!(found_of(events.clone()), [((Invariant::I6, What::EventLost), 2)].into());
    events.left = ["e3", "f1"].map(str::to_owned).into();
    assert_eq!(found_of(events), [((Invariant::I10, What::Outbox), 1)].into());
}

#[test]
fn an_event_that_nobody_committed_or_with_another_body_is_unowed() {
    let mut events = told();
    events.arrived[1] = arrivals(&["f1", "rolled back", "rolled back"]);
    assert_eq!(found_of(events), [((Invariant::I6, What::EventUnowed), 1)].into());

    let mut events = told();
    events.arrived[0][1].digest = digest(b"something else");
    assert_eq!(found_of(events), [((Invariant::I6, What::EventUnowed), 1)].into());
}

#[test]
fn an_event_that_comes_first_after_a_later_one_of_its_key_is_out_of_order() {
    let mut events = told();
    events.arrived[0] = arrivals(&["e3", "e1", "e2", "e3"]);
    assert_eq!(found_of(events), [((Invariant::I6, What::EventOrder), 2)].into());

    // Another key's numbers are its own.
    let mut events = told();
    let place = Some(("acme/order-2".to_owned(), 1));
    events.committed.insert("g1".to_owned(), Emitted { digest: digest(b"g1"), place });
    events.arrived[0].extend(arrivals(&["g1"]));
    assert_eq!(found_of(events), BTreeMap::new());
}

/// The product's tables, as far as the judge reads them.
const TABLES: &str = "
create schema oncely;
create table oncely.cell (secret bytea not null);
insert into oncely.cell values ('0123456789abcdef');
create function oncely.epoch() returns text language sql as $$ select 'epoch-1' $$;
create table oncely.idempotency_keys (tenant text, consumer text, key text, status text, fingerprint bytea);
create table oncely.audit (tenant text, consumer text, key text, outcome text);
create table oncely.mirror_queue (id integer);
create schema judge;
create table judge.effects (tenant text, key text, n bigint);
create table judge.log (
    tenant text, key text, digest text, attempt integer, application text, day integer default 0, beside text
);
create table judge.hot (n bigint);
insert into judge.hot values (0);
create table judge.trail (
    place bigint, tenant text, key text, outcome text, attempt integer, reason text, error_code text, at numeric
);
create table judge.discarded (tenant text, key text);
create table judge.trespasses (who text, what text);
create function judge.today() returns integer language sql as 'select 0';
create function judge.note() returns void language sql as '';
";

async fn run(connection: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.unwrap();
}

#[tokio::test]
async fn evidence_is_read_from_the_tables() {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, TABLES).await;
    let one = intent("a", Act::Work, 0);
    let sent = sent(&[(&one, Class::Confirmed)]);
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(found(&sent, &evidence), [((Invariant::I2, What::Lost), 1)].into());

    run(
        &mut connection,
        &format!(
            "insert into judge.effects values ('acme', 'a', 1);
             insert into judge.log values ('acme', 'a', '{}', 1, 'worker-1');
             insert into oncely.idempotency_keys values ('acme', 'faults', 'a', 'COMPLETED', 'f');
             insert into oncely.audit values ('acme', 'faults', 'a', 'completed')",
            digest(&one.body)
        ),
    )
    .await;
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    assert_eq!(judge(&sent, &evidence), []);

    // A second effect as a second row, which no constraint stops.
    run(
        &mut connection,
        "insert into judge.effects values ('acme', 'a', 1); insert into oncely.mirror_queue values (1)",
    )
    .await;
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    let expected = [
        ((Invariant::I1, What::Doubled), 1),
        ((Invariant::I1, What::Books), 1),
        ((Invariant::I10, What::MirrorQueue), 1),
    ];
    assert_eq!(found(&sent, &evidence), expected.into());
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn an_entry_of_the_mirror_must_belong_to_a_completed_row_of_this_history() {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, TABLES).await;
    run(
        &mut connection,
        "insert into oncely.idempotency_keys values
            ('acme', 'faults', 'done', 'COMPLETED', decode('00ff', 'hex')),
            ('acme', 'faults', 'failed', 'FAILED', decode('00ff', 'hex'))",
    )
    .await;
    // The format, written out once more.
    let tag = |epoch: &str, key: &str| {
        let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(
            "oncely 2026-11-20 mirror tag v1",
            b"0123456789abcdef",
        ));
        for part in [epoch.as_bytes(), b"acme", b"faults", key.as_bytes(), &[0x00, 0xff]] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        hasher.finalize().as_bytes()[..16].to_vec()
    };
    let evidence = |tag: &[u8], bucket: &str| {
        let key = blake3::derive_key("oncely 2026-11-22 mirror evidence v1", b"0123456789abcdef");
        let mac = blake3::Hasher::new_keyed(&key).update(tag).update(bucket.as_bytes()).finalize();
        mac.as_bytes()[..8].to_vec()
    };
    let entry = |tag: Vec<u8>| {
        let number = u32::from_be_bytes(tag[..4].try_into().unwrap()) % 64;
        let bucket = format!("oncely:2:1800000:64:7:{number:x}");
        Entry { field: tag[8..].to_vec(), value: evidence(&tag, &bucket), bucket }
    };
    let good = entry(tag("epoch-1", "done"));
    let misplaced = Entry { bucket: "oncely:2:1800000:64:7:ffff".to_owned(), ..good.clone() };
    let unproved = Entry { value: good.field.clone(), ..good.clone() };
    for wrong in [
        entry(tag("epoch-1", "failed")),
        entry(tag("epoch-1", "never heard of")),
        entry(tag("epoch-0", "done")),
        entry(b"junkjunkjunkjunk".to_vec()),
        misplaced,
        unproved,
    ] {
        let found = stale(&mut connection, None, vec![good.clone(), wrong.clone()]).await.unwrap();
        assert_eq!(found, [wrong]);
    }
    // And as it comes out of Redis.
    let client = redis::Client::open(servers.urls().redis.clone()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let bucket = format!("oncely:2:1:1:{}:0", uuid::Uuid::new_v4());
    let foreign = Entry { bucket: bucket.clone(), field: b"01234567".to_vec(), value: b"89abcdef".to_vec() };
    let mut set = redis::cmd("HSET");
    set.arg(&bucket).arg(&foreign.field).arg(&foreign.value);
    let _: () = set.query_async(&mut redis).await.unwrap();
    assert!(entries(&servers.urls().redis).await.unwrap().contains(&foreign));
    let _: () = redis::cmd("DEL").arg(&bucket).query_async(&mut redis).await.unwrap();
    drop(connection);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn a_trail_keeps_its_order_and_its_times_while_clocks_are_set_back_and_days_go_by() {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let mut migrator = sqlx::migrate::Migrator::new(folder).await.unwrap();
    migrator.dangerous_set_table_name("oncely._sqlx_migrations");
    run(&mut connection, "create schema oncely").await;
    migrator.run(&mut connection).await.unwrap();
    run(&mut connection, testbed::checker::SCHEMA).await;
    let failed = |attempt: i32, outcome: &str| {
        format!(
            "insert into oncely.audit (occurred_at, worker, queue, tenant, consumer, key, outcome, attempt, reason)
             values (clock_timestamp(), 'w', 'q', 'acme', 'faults', 'a', '{outcome}', {attempt}, 'error')"
        )
    };
    run(&mut connection, &failed(1, "retried")).await;
    run(&mut connection, "select judge.age('-3 seconds')").await;
    run(&mut connection, &failed(2, "retried")).await;
    run(&mut connection, "select judge.age('3 seconds')").await;
    run(&mut connection, "select judge.age('2 days')").await;
    run(&mut connection, &failed(3, "dead_lettered")).await;
    let mut evidence = Evidence::default();
    evidence.read_tables(&mut connection, "faults").await.unwrap();
    let steps = &evidence.trail[&key("a")];
    assert_eq!(steps.iter().map(|step| step.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    let gaps: Vec<f64> = steps.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!((0.0..2.0).contains(&gaps[0]), "{gaps:?}");
    assert!((172_800.0..172_810.0).contains(&gaps[1]), "{gaps:?}");
    drop(connection);
    database.drop_now().await.unwrap();
}

#[test]
fn the_publishers_books_keep_the_best_that_is_known_of_a_message() {
    let one = intent("a", Act::Work, 0);
    let books = sent(&[(&one, Class::Confirmed), (&one, Class::Unknown), (&one, Class::Refused)]);
    assert_eq!(books.versions(&key("a"))[0].class, Class::Confirmed);
    assert_eq!((books.messages, books.unknown, books.refused, books.distinct()), (3, 1, 1, 1));
    let books = sent(&[(&one, Class::Refused), (&one, Class::Unknown)]);
    assert_eq!(books.versions(&key("a"))[0].class, Class::Unknown);
}
