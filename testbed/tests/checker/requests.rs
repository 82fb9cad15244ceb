//! L10: what clients over HTTP were told.

use testbed::checker::{Act, Class, Evidence, HttpAnswer, Intent, Invariant, What};

use crate::{found, intent, sent, took_effect};

fn taken(body: &str) -> HttpAnswer {
    HttpAnswer { status: 201, problem: None, replayed: false, body: Some(body.as_bytes().to_vec()) }
}

fn conflict() -> HttpAnswer {
    let problem = Some("key-reused".to_owned());
    HttpAnswer { status: 422, problem, replayed: false, body: Some(Vec::new()) }
}

fn work(name: &str) -> Intent {
    intent(name, Act::Work, 0)
}

#[test]
fn a_request_that_is_answered_alike_and_took_effect_is_well() {
    let mut evidence = Evidence::default();
    let work = work("k");
    took_effect(&mut evidence, &work);
    evidence.requests.learn(&work, &taken("7"));
    evidence.requests.learn(&work, &HttpAnswer { replayed: true, ..taken("7") });
    let busy = HttpAnswer { status: 409, problem: Some("in-flight".to_owned()), ..taken("") };
    evidence.requests.learn(&work, &busy);
    assert_eq!(found(&sent(&[(&work, Class::Confirmed)]), &evidence), [].into());
    assert_eq!((evidence.requests.answered(), evidence.requests.replays), (1, 1));
}

#[test]
fn two_answers_to_one_request_are_found() {
    let mut evidence = Evidence::default();
    let work = work("k");
    took_effect(&mut evidence, &work);
    evidence.requests.learn(&work, &taken("7"));
    evidence.requests.learn(&work, &taken("8"));
    let found = found(&sent(&[(&work, Class::Confirmed)]), &evidence);
    assert_eq!(found, [((Invariant::L10, What::AnswersDiffer), 1)].into());
}

#[test]
fn an_answer_without_an_effect_is_found() {
    let mut evidence = Evidence::default();
    let work = work("k");
    evidence.requests.learn(&work, &taken("7"));
    let found = found(&sent(&[(&work, Class::Unknown)]), &evidence);
    assert_eq!(found, [((Invariant::L10, What::AnsweredInVain), 1)].into());
}

#[test]
fn a_conflict_needs_another_payload_that_took_effect() {
    let (first, other) = (work("k"), intent("k", Act::Work, 1));
    let both = sent(&[(&first, Class::Confirmed), (&other, Class::Refused)]);
    let mut evidence = Evidence::default();
    took_effect(&mut evidence, &first);
    evidence.requests.learn(&other, &conflict());
    assert_eq!(found(&both, &evidence), [].into());
    let unexpected = [((Invariant::L10, What::AnswerUnexpected), 1)].into();
    // Nobody has sent another one.
    let mut alone = Evidence::default();
    took_effect(&mut alone, &first);
    alone.requests.learn(&first, &conflict());
    assert_eq!(found(&sent(&[(&first, Class::Confirmed)]), &alone), unexpected);
    // It is the one that took effect.
    let mut refused = Evidence::default();
    took_effect(&mut refused, &first);
    refused.requests.learn(&first, &conflict());
    assert_eq!(found(&both, &refused), unexpected);
}

#[test]
fn a_status_that_the_door_does_not_have_is_found() {
    let mut evidence = Evidence::default();
    let work = work("k");
    evidence.requests.learn(&work, &HttpAnswer { status: 404, ..taken("") });
    let found = found(&sent(&[(&work, Class::Unknown)]), &evidence);
    assert_eq!(found, [((Invariant::L10, What::AnswerUnexpected), 1)].into());
}
