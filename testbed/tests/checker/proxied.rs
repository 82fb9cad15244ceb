//! L12: requests that went through a gateway.

use testbed::checker::{Answer, Call, HttpAnswer, Order, Proxied, ProxiedRow, Side};

use super::*;

fn request(name: &str) -> Intent {
    let (tenant, key) = key(name);
    Order { tenant, key, sides: vec![], tears: 0, refusals: 0, delay: 0 }.intent()
}

fn call(name: &str, number: i64, at: f64, answer: Answer) -> Call {
    let call_key = format!("{name}#{number}");
    Call { key: key(name), side: Side::Once, call_key, token: number, at, answered: Some(at), answer }
}

fn said(status: u16, body: Option<&str>) -> HttpAnswer {
    let problem = body.is_some_and(|body| body.contains("outcome-unknown"));
    HttpAnswer {
        status,
        problem: problem.then(|| "outcome-unknown".to_owned()),
        replayed: false,
        body: body.map(|body| body.as_bytes().to_vec()),
    }
}

fn row(status: &str, reason: &str) -> ProxiedRow {
    ProxiedRow { status: status.to_owned(), reason: reason.to_owned(), ..ProxiedRow::default() }
}

/// One of each: refused and then done; torn, and held; torn, settled, and done; done at length.
fn good() -> Proxied {
    let calls = vec![
        call("done", 1, 100.0, Answer::Refused),
        call("done", 2, 101.0, Answer::Done),
        call("torn", 1, 100.0, Answer::Torn { happened: true }),
        call("settled", 1, 100.0, Answer::Torn { happened: false }),
        call("settled", 2, 120.0, Answer::Done),
        call("long", 1, 100.0, Answer::Done),
    ];
    let rows = [
        (key("done"), row("COMPLETED", "")),
        (key("torn"), row("FAILED", "outcome_unknown")),
        (key("settled"), row("COMPLETED", "")),
        (key("long"), row("COMPLETED", "")),
    ];
    let refusals = [(key("settled"), 1)].into();
    let mut proxied = Proxied { calls, rows: rows.into(), refusals, ..Proxied::default() };
    for (name, status, body) in [
        ("done", 503, Some("{}")),
        ("done", 201, Some("{\"call\":\"done#2\"}")),
        ("torn", 409, Some("outcome-unknown")),
        ("settled", 201, Some("{\"call\":\"settled#2\"}")),
        ("long", 201, Some("{\"call\":\"long#1\"}")),
        ("long", 201, None),
    ] {
        proxied.requests.learn(&request(name), &said(status, body));
    }
    proxied
}

fn found_in(proxied: Proxied) -> BTreeMap<(Invariant, What), u64> {
    found(&Sent::default(), &Evidence { proxied, ..Evidence::default() })
}

/// What is found after this change of what is good.
fn after(change: impl FnOnce(&mut Proxied)) -> BTreeMap<(Invariant, What), u64> {
    let mut proxied = good();
    change(&mut proxied);
    found_in(proxied)
}

fn only(invariant: Invariant, what: What) -> BTreeMap<(Invariant, What), u64> {
    [((invariant, what), 1)].into()
}

#[test]
fn requests_that_went_as_they_should_are_well() {
    assert_eq!(found_in(good()), BTreeMap::new());
}

#[test]
fn a_request_is_sent_on_once_unless_it_was_refused_or_a_person_says_no() {
    let wrong = only(Invariant::L12, What::NeverRepeated);
    let again = |proxied: &mut Proxied| {
        proxied.calls.push(call("torn", 2, 105.0, Answer::Torn { happened: false }));
    };
    assert_eq!(after(again), wrong);
    assert_eq!(after(|proxied| proxied.refusals.clear()), wrong);
    let twice = |proxied: &mut Proxied| {
        proxied.refusals.insert(key("torn"), 1);
        proxied.calls.push(call("torn", 2, 105.0, Answer::Done));
        proxied.rows.insert(key("torn"), row("COMPLETED", ""));
    };
    assert_eq!(after(twice), only(Invariant::L12, What::EffectRepeated), "the person was wrong");
}

#[test]
fn half_of_an_answer_that_was_read_as_the_whole_is_found() {
    let of = |status, body: &str| {
        after(|proxied| {
            proxied.requests = Default::default();
            proxied.requests.learn(&request("long"), &said(status, Some(body)));
        })
    };
    assert_eq!(of(201, "{\"call\":\"long#1\"}"), BTreeMap::new());
    let half = only(Invariant::L12, What::AnswerHalf);
    assert_eq!(of(201, "{\"call\":\"long#"), half);
    assert_eq!(of(201, ""), half);
    assert_eq!(of(201, "{\"call\":\"done#2\"}"), half, "of another one");
    assert_eq!(of(204, ""), BTreeMap::new(), "a person's yes");
}

#[test]
fn an_answer_is_the_same_each_time_and_says_what_happened() {
    let other = |proxied: &mut Proxied| {
        proxied.calls.push(call("done", 3, 102.0, Answer::Refused));
        proxied.requests.learn(&request("done"), &said(200, Some("{\"call\":\"done#2\"}")));
    };
    assert_eq!(after(other), only(Invariant::L10, What::AnswersDiffer));
    let in_vain = |proxied: &mut Proxied| {
        proxied.requests.learn(&request("nothing"), &said(204, Some("")));
    };
    assert_eq!(after(in_vain), only(Invariant::L10, What::AnsweredInVain));
    let late = |proxied: &mut Proxied| {
        proxied.requests.learn(&request("done"), &said(504, Some("upstream-late")));
    };
    assert_eq!(after(late), only(Invariant::L10, What::AnswerUnexpected), "this gateway holds");
}

#[test]
fn an_answer_that_a_page_may_not_read_is_found() {
    let withheld = |proxied: &mut Proxied| proxied.requests.learn_withheld(&request("done"), 503);
    assert_eq!(after(withheld), only(Invariant::L10, What::AnswerWithheld));
}

#[test]
fn what_was_answered_in_time_stays_unknown_only_where_a_gateway_died() {
    let unknown_of = |deaths: &[f64], answered: Option<f64>| {
        after(|proxied| {
            proxied
                .calls
                .iter_mut()
                .filter(|call| call.key == key("long"))
                .for_each(|call| call.answered = answered);
            proxied.rows.insert(key("long"), row("FAILED", "outcome_unknown"));
            proxied.deaths = deaths.to_vec();
        })
    };
    let unknown = |deaths: &[f64]| unknown_of(deaths, Some(111.0));
    let wrong = only(Invariant::L12, What::UnjustifiedDeadLetter);
    assert_eq!(unknown(&[]), wrong);
    assert_eq!(unknown_of(&[], Some(117.0)), BTreeMap::new(), "too late");
    assert_eq!(unknown_of(&[], None), BTreeMap::new(), "never sent");
    assert_eq!(unknown(&[99.0]), wrong, "before the call");
    assert_eq!(unknown(&[101.0]), BTreeMap::new());
    let in_vain = |proxied: &mut Proxied| drop(proxied.rows.insert(key("nobody"), row("COMPLETED", "")));
    assert_eq!(after(in_vain), only(Invariant::L12, What::Completions));
    let held = |proxied: &mut Proxied| proxied.rows.get_mut(&key("done")).unwrap().is_held = true;
    assert_eq!(after(held), only(Invariant::L8, What::NotDrained));
}
