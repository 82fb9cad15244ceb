//! L13: an observer beside a consumer.

use testbed::checker::Observed;

use super::*;

/// One that came once, one that came again, one that may not have been published.
fn good() -> Observed {
    let sights = |all: &[(&str, usize)]| -> BTreeMap<String, usize> {
        all.iter().map(|(sight, count)| ((*sight).to_owned(), *count)).collect()
    };
    Observed {
        confirmed: ["once", "again"].map(key).into(),
        sent: ["once", "again", "perhaps"].map(key).into(),
        seen: [
            (key("once"), sights(&[("first", 1)])),
            (key("again"), sights(&[("first", 1), ("duplicate", 2), ("unsure", 1)])),
        ]
        .into(),
        done: Vec::new(),
    }
}

/// What is found after this change of what is good.
fn after(change: impl FnOnce(&mut Observed)) -> BTreeMap<(Invariant, What), u64> {
    let mut observed = good();
    change(&mut observed);
    found(&Sent::default(), &Evidence { observed, ..Evidence::default() })
}

fn only(what: What) -> BTreeMap<(Invariant, What), u64> {
    [((Invariant::L13, what), 1)].into()
}

#[test]
fn an_observer_sees_each_message_and_nobody_elses() {
    assert_eq!(after(|_| {}), BTreeMap::new());
    assert_eq!(after(|observed| drop(observed.seen.remove(&key("once")))), only(What::Unseen));
    let unsent = after(|observed| {
        observed.sent.remove(&key("once"));
    });
    assert_eq!(unsent, only(What::Unseen));
}

#[test]
fn an_observer_takes_a_key_for_new_once_and_does_nothing() {
    let saw = |sight: &str, count| {
        after(|observed| {
            observed.seen.get_mut(&key("again")).unwrap().insert(sight.to_owned(), count);
        })
    };
    assert_eq!(saw("first", 2), only(What::SeenWrong));
    assert_eq!(saw("first", 0), only(What::SeenWrong));
    assert_eq!(saw("key_conflict", 1), only(What::SeenWrong));
    assert_eq!(saw("unsure", 3), BTreeMap::new());
    assert_eq!(after(|observed| observed.done.push("a letter".to_owned())), only(What::SeenWrong));
}
