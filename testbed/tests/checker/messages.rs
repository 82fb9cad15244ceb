//! What became of messages.

use super::*;

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
fn rows_of_the_trail_that_no_partition_has_are_named() {
    let (sent, mut evidence) = good();
    evidence.unpartitioned = 2;
    assert_eq!(found(&sent, &evidence), [((Invariant::I10, What::Unpartitioned), 1)].into());
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

#[test]
fn a_watcher_that_fails_is_named_and_a_page_that_comes_in_time_is_counted() {
    let (sent, mut evidence) = good();
    evidence.watched.record_page(200, PAGE_LIMIT, "/failed");
    evidence.watched.record_page(503, PAGE_LIMIT / 2, "/");
    assert_eq!(found(&sent, &evidence), BTreeMap::new());
    evidence.watched.record_page(200, PAGE_LIMIT + Duration::from_millis(1), "/keys");
    evidence.watched.wrong.push((What::WatcherPanicked, "console-1".to_owned()));
    let named = [((Invariant::I15, What::WatcherPanicked), 1), ((Invariant::I15, What::WatcherSlow), 1)];
    assert_eq!(found(&sent, &evidence), named.into());
    assert_eq!(evidence.watched.pages, [(200, 2), (503, 1)].into());
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

#[test]
fn what_is_answered_with_a_no_has_no_effect_and_one_answer() {
    let no = intent("n", Act::Refuse, 0);
    let (_, mut evidence) = good();
    let lost = [((Invariant::I2, What::Lost), 1)].into();
    assert_eq!(found(&sent(&[(&no, Class::Confirmed)]), &Evidence::default()), lost);
    let (mut books, _) = good();
    books.intend(&no);
    books.learn(&no, Class::Confirmed);
    assert_eq!(books.due(), 3, "nobody waits for its effect");
    evidence.status.insert(key("n"), "COMPLETED".to_owned());
    evidence.refused.insert(key("n"), 1);
    evidence.answered.insert(key("n"));
    assert_eq!(judge(&books, &evidence), []);
    evidence.refused.insert(key("n"), 2);
    assert_eq!(found(&books, &evidence), [((Invariant::I4, What::OrphanAudit), 1)].into());
    evidence.refused.insert(key("n"), 0);
    took_effect(&mut evidence, &no);
    assert_eq!(found(&books, &evidence), [((Invariant::I1, What::WrongEffect), 1)].into());
}

#[test]
fn each_payload_of_a_tenant_that_returns_takes_effect_once() {
    let mut evidence = Evidence::default();
    let intents = [0, 1].map(|version| Intent::new(RETURNING, "k", Act::Work, version));
    let books = sent(&[(&intents[0], Class::Confirmed), (&intents[1], Class::Confirmed)]);
    let key = (RETURNING.to_owned(), "k".to_owned());
    let run = |intent: &Intent| (digest(&intent.body), 1, "worker-1".to_owned());
    evidence.status.insert(key.clone(), "COMPLETED".to_owned());
    evidence.completed.insert(key.clone(), 1);
    evidence.effects.insert(key.clone(), 1);
    evidence.runs.insert(key.clone(), vec![run(&intents[0])]);
    assert_eq!(found(&books, &evidence), [((Invariant::I2, What::Lost), 1)].into());
    evidence.dead.insert(letter(&intents[1], "key_conflict"));
    assert_eq!(found(&books, &evidence), [((Invariant::I1, What::UnexplainedDeadLetter), 1)].into());
    evidence.dead.clear();
    evidence.effects.insert(key.clone(), 2);
    evidence.runs.insert(key.clone(), intents.iter().map(run).collect());
    assert_eq!(judge(&books, &evidence), []);
    evidence.effects.insert(key.clone(), 3);
    evidence.runs.insert(key, [&intents[0], &intents[1], &intents[1]].map(run).into());
    assert_eq!(found(&books, &evidence), [((Invariant::I1, What::Doubled), 1)].into());
}
