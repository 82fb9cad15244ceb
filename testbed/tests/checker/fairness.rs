//! Who starves.

use super::*;

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
            5 => fairness.begin_fault(),
            75 => fairness.end_fault(),
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
fn a_message_may_wait_for_a_while_from_the_last_fault_on() {
    let mut fairness = Fairness::default();
    let at = Duration::from_secs;
    let waiting = [(key("hot"), at(10))];
    fairness.look_at_waiting(at(11), &waiting);
    fairness.begin_fault();
    fairness.look_at_waiting(at(40), &waiting);
    fairness.end_fault();
    for second in 50..76 {
        fairness.look_at_waiting(at(second), &waiting);
    }
    assert_eq!((fairness.starved().len(), fairness.longest), (0, at(25)));
    for second in 76..80 {
        fairness.look_at_waiting(at(second), &waiting);
    }
    assert_eq!(fairness.starved().len(), 1, "{:?}", fairness.starved());
}
