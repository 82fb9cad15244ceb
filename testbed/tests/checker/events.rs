//! What became of events.

use super::*;

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
