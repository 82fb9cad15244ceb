//! Runs under leases, and what they call outside.

use testbed::checker::{Answer, Call, HttpAnswer, LeaseRow, LeaseStep, Leases, Order, Side};

use super::*;

fn order(name: &str, side: Side) -> Intent {
    let (tenant, key) = key(name);
    Order { tenant, key, sides: vec![side], tears: 0, refusals: 0, delay: 0 }.intent()
}

fn call(name: &str, side: Side, token: i64, at: f64, answer: Answer) -> Call {
    Call {
        key: key(name),
        side,
        call_key: format!("{name}-{}", side.name()),
        token,
        at,
        answered: Some(at),
        answer,
    }
}

fn step(outcome: &str, attempt: i32, reason: &str, at: f64) -> LeaseStep {
    LeaseStep { outcome: outcome.to_owned(), attempt, reason: reason.to_owned(), detail: String::new(), at }
}

fn row(status: &str, token: i64, stored: &[(Side, i64)]) -> LeaseRow {
    let stored = stored.iter().map(|(side, token)| (side.name().to_owned(), *token)).collect();
    LeaseRow { status: status.to_owned(), token, is_held: false, stored, by_request: false }
}

/// One of each: done at once; taken over and called again; failed and called again; given up because nobody knew.
fn good() -> Leases {
    let mut leases = Leases { max_crashes: 3, lease: 5.0, interruptions: vec![99.0], ..Leases::default() };
    let [pay, mail, charge, once] =
        [("pay", Side::Pay), ("mail", Side::Mail), ("charge", Side::Charge), ("once", Side::Once)]
            .map(|(name, side)| order(name, side));
    leases.sent = sent(&[&pay, &mail, &charge, &once].map(|intent| (intent, Class::Confirmed)));
    leases.calls = vec![
        call("pay", Side::Pay, 10, 100.0, Answer::Torn { happened: true }),
        call("pay", Side::Pay, 12, 106.0, Answer::Known),
        call("mail", Side::Mail, 20, 100.0, Answer::Done),
        call("charge", Side::Charge, 30, 100.0, Answer::Torn { happened: false }),
        call("charge", Side::Charge, 31, 108.0, Answer::Done),
        call("once", Side::Once, 40, 100.0, Answer::Torn { happened: true }),
    ];
    leases.rows = [
        (key("pay"), row("COMPLETED", 12, &[(Side::Pay, 12)])),
        (key("mail"), row("COMPLETED", 20, &[(Side::Mail, 20)])),
        (key("charge"), row("COMPLETED", 31, &[(Side::Charge, 31)])),
        (key("once"), row("FAILED", 41, &[])),
    ]
    .into();
    leases.trail = [
        (
            key("pay"),
            vec![
                step("taken_over", 1, "", 105.0),
                step("completed", 1, "", 106.1),
                step("fenced", 0, "", 107.0),
            ],
        ),
        (key("mail"), vec![step("completed", 1, "", 100.1)]),
        (key("charge"), vec![step("retried", 1, "", 100.1), step("completed", 2, "", 108.1)]),
        (
            key("once"),
            vec![step("retried", 1, "", 100.1), step("dead_lettered", 2, "outcome_unknown", 100.4)],
        ),
    ]
    .into();
    let ends = [("pay", 12), ("mail", 20), ("charge", 31)];
    leases.finished = ends.map(|(name, token)| (key(name), vec![token])).into();
    leases.reserved = [("pay", 10), ("mail", 20), ("charge", 30), ("once", 40)]
        .map(|(name, token)| (key(name), vec![token]))
        .into();
    leases.dead.insert(letter(&once, "outcome_unknown"));
    leases
}

fn found_in(leases: Leases) -> BTreeMap<(Invariant, What), u64> {
    found(&Sent::default(), &Evidence { leases, ..Evidence::default() })
}

/// What is found after this change of what is good.
fn after(change: impl FnOnce(&mut Leases)) -> BTreeMap<(Invariant, What), u64> {
    let mut leases = good();
    change(&mut leases);
    found_in(leases)
}

fn only(invariant: Invariant, what: What) -> BTreeMap<(Invariant, What), u64> {
    [((invariant, what), 1)].into()
}

#[test]
fn runs_that_went_as_they_should_are_well() {
    assert_eq!(found_in(good()), BTreeMap::new());
    let leases = good();
    assert_eq!((leases.count("taken_over"), leases.count("fenced"), leases.unknown()), (1, 1, 1));
    assert!(leases.open().is_empty());
}

#[test]
fn a_key_is_completed_once_with_its_writes() {
    let wrong = only(Invariant::L1, What::Completions);
    let again = |leases: &mut Leases| {
        leases.trail.get_mut(&key("mail")).unwrap().push(step("completed", 1, "", 101.0));
    };
    assert_eq!(after(again), wrong);
    assert_eq!(after(|leases| leases.finished.get_mut(&key("mail")).unwrap().push(20)), wrong);
    assert_eq!(after(|leases| drop(leases.finished.remove(&key("mail")))), wrong);
    assert_eq!(after(|leases| leases.reserved.get_mut(&key("mail")).unwrap().push(20)), wrong);
    assert_eq!(after(|leases| drop(leases.reserved.remove(&key("mail")))), wrong);
}

#[test]
fn a_request_completes_a_key_without_a_transaction_and_only_then_is_it_told_so() {
    let taken =
        |body: &str| HttpAnswer { status: 201, problem: None, replayed: false, body: Some(body.into()) };
    let by_request = |leases: &mut Leases, token: &str| {
        let row = leases.rows.get_mut(&key("mail")).unwrap();
        row.by_request = true;
        drop(leases.finished.remove(&key("mail")));
        drop(leases.reserved.remove(&key("mail")));
        leases.requests.learn(&order("mail", Side::Mail), &taken(token));
    };
    assert_eq!(after(|leases| by_request(leases, "20")), BTreeMap::new());
    let twice = after(|leases| {
        by_request(leases, "20");
        by_request(leases, "21");
    });
    assert_eq!(twice, only(Invariant::L10, What::AnswersDiffer));
    let in_vain = after(|leases| leases.requests.learn(&order("once", Side::Once), &taken("41")));
    assert_eq!(in_vain, only(Invariant::L10, What::AnsweredInVain));
}

#[test]
fn tokens_never_fall_but_in_the_late_call_of_who_was_frozen() {
    let late = |leases: &mut Leases| {
        // Its run had been given back.
        leases.gave_back = 1;
        leases.calls.push(call("pay", Side::Pay, 11, 108.0, Answer::Known));
    };
    assert_eq!(after(late), only(Invariant::L2, What::TokenFell));
    let frozen = |leases: &mut Leases| {
        late(leases);
        leases.freezes.push((99.0, 107.0));
    };
    assert_eq!(after(frozen), BTreeMap::new());
    let wrong = only(Invariant::L2, What::TokenFell);
    assert_eq!(after(|leases| leases.rows.get_mut(&key("pay")).unwrap().token = 11), wrong);
    assert_eq!(after(|leases| leases.finished.get_mut(&key("pay")).unwrap()[0] = 10), wrong);
}

#[test]
fn no_lease_is_taken_over_before_its_end() {
    let wrong = only(Invariant::L2, What::TakenEarly);
    assert_eq!(after(|leases| leases.interruptions.clear()), wrong, "nobody had died");
    let again = |leases: &mut Leases, at| {
        leases.trail.get_mut(&key("pay")).unwrap().insert(1, step("taken_over", 1, "", at));
    };
    assert_eq!(after(|leases| again(leases, 107.0)), wrong);
    assert_eq!(after(|leases| again(leases, 110.0)), BTreeMap::new());
    let moved = |leases: &mut Leases| {
        again(leases, 107.0);
        leases.clocks.push(106.0);
    };
    assert_eq!(after(moved), BTreeMap::new());
}

#[test]
fn a_side_that_knows_its_keys_sees_one_effect() {
    let other_key = |leases: &mut Leases| {
        leases.calls[1].answer = Answer::Done;
        leases.calls[1].call_key.push_str("-of-the-second-run");
    };
    assert_eq!(after(other_key), only(Invariant::L3, What::EffectRepeated));
}

#[test]
fn each_run_calls_once_and_each_run_has_its_reason() {
    let wrong = only(Invariant::L4, What::CallRepeated);
    let same_run = |leases: &mut Leases| {
        leases.calls.push(call("mail", Side::Mail, 20, 100.05, Answer::Done));
    };
    assert_eq!(after(same_run), wrong);
    let no_reason = |leases: &mut Leases| {
        leases.calls.insert(2, call("mail", Side::Mail, 19, 99.0, Answer::Done));
    };
    assert_eq!(after(no_reason), wrong);
    let no_verdict = |leases: &mut Leases| {
        no_reason(leases);
        leases.undecided.insert(key("mail"), 1);
    };
    assert_eq!(after(no_verdict), BTreeMap::new(), "none had succeeded beside it");
}

#[test]
fn what_must_not_be_repeated_is_called_once() {
    let again = |leases: &mut Leases| {
        leases.calls.push(call("once", Side::Once, 41, 100.3, Answer::Done));
    };
    assert_eq!(after(again), only(Invariant::L5, What::NeverRepeated));
    let refused = |leases: &mut Leases| leases.calls[5].answer = Answer::Refused;
    let both = |leases: &mut Leases| {
        again(leases);
        refused(leases);
    };
    assert_eq!(after(both), BTreeMap::new(), "what was refused did not happen");
}

#[test]
fn no_call_comes_past_its_window() {
    let late = |leases: &mut Leases| leases.calls[4].at = 111.0;
    assert_eq!(after(late), only(Invariant::L6, What::PastWindow));
}

#[test]
fn a_stored_step_is_not_called_again() {
    let again = |leases: &mut Leases| {
        leases.rows.get_mut(&key("charge")).unwrap().stored.insert("charge".to_owned(), 30);
    };
    assert_eq!(after(again), only(Invariant::L7, What::StoredCalled));
}

#[test]
fn what_ended_long_ago_may_be_forgotten() {
    let gone = |leases: &mut Leases| drop(leases.rows.remove(&key("mail")));
    let both = [((Invariant::L1, What::Completions), 1), ((Invariant::L8, What::Lost), 1)];
    assert_eq!(after(gone), both.into());
    let later = |leases: &mut Leases| {
        gone(leases);
        leases.trail.get_mut(&key("pay")).unwrap()[2].at += 31.0 * 86_400.0;
    };
    assert_eq!(after(later), BTreeMap::new());
}

#[test]
fn what_is_confirmed_comes_to_an_end() {
    let acknowledged = |leases: &mut Leases| {
        let row = leases.rows.get_mut(&key("mail")).unwrap();
        row.status = "IN_PROGRESS".to_owned();
        leases.finished.remove(&key("mail"));
        leases.trail.remove(&key("mail"));
    };
    assert_eq!(after(acknowledged), only(Invariant::L8, What::Lost));
    let waits = |leases: &mut Leases| {
        acknowledged(leases);
        leases.queued.insert(letter(&order("mail", Side::Mail), ""));
    };
    assert_eq!(after(waits), only(Invariant::L8, What::NotDrained));
    let held = |leases: &mut Leases| leases.rows.get_mut(&key("mail")).unwrap().is_held = true;
    assert_eq!(after(held), only(Invariant::L8, What::NotDrained));
    let both = |leases: &mut Leases| {
        leases.dead.insert(letter(&order("mail", Side::Mail), "outcome_unknown"));
    };
    assert_eq!(after(both), only(Invariant::L8, What::ProcessedAndDead));
}

#[test]
fn an_outage_spends_no_attempt_and_a_crash_needs_deaths() {
    let spent = |leases: &mut Leases| {
        leases.trail.get_mut(&key("mail")).unwrap().insert(0, step("retried", 1, "", 99.0));
    };
    assert_eq!(after(spent), only(Invariant::L9, What::OutageCharged));
    let crash = |takeovers: usize, deaths: &[f64]| {
        after(|leases| {
            let trail = leases.trail.get_mut(&key("once")).unwrap();
            trail.truncate(1);
            trail.extend(
                [101.0, 106.0, 111.0].map(|at| step("taken_over", 1, "", at)).into_iter().take(takeovers),
            );
            trail.push(step("dead_lettered", 4, "crash", 120.0));
            leases.interruptions = deaths.to_vec();
        })
    };
    let unjustified = only(Invariant::L9, What::UnjustifiedDeadLetter);
    assert_eq!(crash(3, &[101.0, 105.0, 110.0]), BTreeMap::new());
    assert_eq!(crash(3, &[101.0, 105.0, 130.0]), unjustified, "the third died later");
    assert_eq!(crash(2, &[101.0, 105.0, 110.0]), unjustified, "nobody took it over a third time");
    let of_nothing = |leases: &mut Leases| {
        leases.trail.get_mut(&key("once")).unwrap()[1].reason = "poison".to_owned();
    };
    assert_eq!(after(of_nothing), unjustified);
}

#[test]
fn a_lease_that_lasts_too_long_is_found() {
    let long = |leases: &mut Leases| {
        leases.overlong.insert("acme/mail".to_owned());
    };
    assert_eq!(after(long), only(Invariant::L11, What::LeaseTooLong));
}

#[test]
fn what_a_person_lets_be_repeated_is_called_by_its_key_and_what_is_settled_runs_again() {
    // The call of "once" is repeated, and refused; then it is done.
    let repeated = |leases: &mut Leases, last: &str| {
        leases.leaves.insert(key("once"), 1);
        leases.calls.push(call("once", Side::Once, 42, 200.0, Answer::Refused));
        leases
            .calls
            .push(Call { call_key: last.to_owned(), ..call("once", Side::Once, 43, 201.0, Answer::Done) });
        leases.trail.get_mut(&key("once")).unwrap().push(step("retried", 1, "", 200.5));
        leases.rows.get_mut(&key("once")).unwrap().token = 43;
    };
    assert_eq!(after(|leases| repeated(leases, "once-once")), BTreeMap::new());
    let wrong = only(Invariant::L5, What::NeverRepeated);
    assert_eq!(after(|leases| repeated(leases, "once-once-2")), wrong);
    let settled = |leases: &mut Leases| {
        repeated(leases, "once-once-2");
        leases.settled.insert(key("once"));
    };
    assert_eq!(after(settled), BTreeMap::new());
    let stands = |leases: &mut Leases| {
        settled(leases);
        leases.rows.get_mut(&key("once")).unwrap().status = "IN_PROGRESS".to_owned();
    };
    assert_eq!(after(stands), only(Invariant::L8, What::NotDrained));
}

#[test]
fn a_late_result_may_complete_a_key_whose_letter_waits() {
    let completed = |detail: &str| {
        after(|leases| {
            leases.rows.insert(key("once"), row("COMPLETED", 41, &[(Side::Once, 40)]));
            let late = LeaseStep { detail: detail.to_owned(), ..step("fenced", 1, "", 101.0) };
            let trail = leases.trail.get_mut(&key("once")).unwrap();
            trail.extend([late, step("completed", 1, "", 102.0)]);
            leases.finished.insert(key("once"), vec![41]);
        })
    };
    assert_eq!(
        completed("lost the lease 40, and knows what became of its call all the same"),
        BTreeMap::new()
    );
    assert_eq!(completed("lost the lease 40"), only(Invariant::L8, What::ProcessedAndDead));
}
