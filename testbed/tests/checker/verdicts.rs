//! What justifies a dead letter.

use super::*;

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
    let of = |missing: &[(String, f64, f64)], breaks: &[(f64, f64)]| {
        let intent = Intent::new("branch_0", "b", Act::Branch, 0);
        let key = ("branch_0".to_owned(), "b".to_owned());
        let sent = sent(&[(&intent, Class::Confirmed)]);
        let mut evidence = Evidence::default();
        evidence.dead.insert(letter(&intent, "attempts_exhausted"));
        evidence.trail.insert(key, ladder("attempts_exhausted", &SLOWLY));
        evidence.meanwhile.missing = missing.to_vec();
        evidence.meanwhile.breaks = breaks.to_vec();
        found(&sent, &evidence)
    };
    let missing = |from, to| ("branch_0".to_owned(), from, to);
    assert_eq!(of(&[missing(99.0, 104.0)], &[]), BTreeMap::new());
    assert_eq!(of(&[missing(101.0, 104.0)], &[]), unjustified(1));
    // All of them broke for a while: that explains one attempt.
    assert_eq!(of(&[missing(100.15, 104.0)], &[]), unjustified(1));
    assert_eq!(of(&[missing(100.15, 104.0)], &[(99.9, 103.0)]), BTreeMap::new());
    assert_eq!(of(&[missing(100.15, 104.0)], &[(101.0, 103.0)]), unjustified(1));
    assert_eq!(of(&[missing(101.0, 104.0)], &[(99.9, 103.0)]), unjustified(1));
    let never = of(&[], &[]);
    assert!(never.contains_key(&(Invariant::I1, What::UnexplainedDeadLetter)), "{never:?}");
}

#[test]
fn no_attempt_is_spent_on_a_lock_but_by_a_handler_that_says_so_itself() {
    let (_, mut evidence) = good();
    let step = Step { code: "40P01".to_owned(), ..ladder("attempts_exhausted", &SLOWLY)[0].clone() };
    let charged = |act| {
        let (mut books, _) = good();
        let one = intent("locked", act, 0);
        books.intend(&one);
        books.learn(&one, Class::Unknown);
        books
    };
    evidence.trail.insert(key("locked"), vec![step]);
    let found_in = |books: &Sent| found(books, &evidence);
    assert_eq!(found_in(&charged(Act::Work)), [((Invariant::I13, What::ContentionCharged), 1)].into());
    assert_eq!(found_in(&charged(Act::Serialize)), BTreeMap::new());
}
