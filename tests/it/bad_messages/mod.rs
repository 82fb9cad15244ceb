//! The corpus of bad messages (tests/data/bad_messages.toml): each case alone, and each in the midst of a hundred good ones.

mod judge;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use testbed::{Case, Corpus, Posting, RawConnection, Refusal};

use crate::support::servers;
use judge::{Wrong, judge};
use stage::Stage;

/// Good messages on either side of a case.
const BESIDE: usize = 50;

async fn corpus() -> Corpus {
    let url = servers().await.urls().rabbitmq.clone();
    let version = tokio::task::spawn_blocking(move || RawConnection::version(&url).unwrap()).await.unwrap();
    Corpus::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad_messages.toml"), &version)
        .unwrap()
}

/// Batches of one message: nothing that a case gets comes from its neighbours.
#[tokio::test]
async fn each_bad_message_gets_its_reason_alone() {
    play("alone", 1, 0, |_| true).await;
}

/// Batches that hold a case and its hundred neighbours.
#[tokio::test]
async fn each_bad_message_among_a_hundred_good_ones_costs_none_of_them() {
    // What the broker never takes has no neighbours.
    play("among 100 good", 101, BESIDE, |case| case.crowd && !case.want.starts_with("refused")).await;
}

async fn play(how: &str, batch: usize, beside: usize, chosen: impl Fn(&Case) -> bool) {
    let corpus = corpus().await;
    let cases: Vec<Case> = corpus.cases.iter().filter(|case| chosen(case)).cloned().collect();
    let mut by_part: BTreeMap<&str, usize> = BTreeMap::new();
    for case in &cases {
        *by_part.entry(&case.part).or_default() += 1;
    }
    assert!(cases.len() >= 300, "{by_part:?}");

    let began = Instant::now();
    let mut stage = Stage::set(&corpus, batch).await;
    let ready = began.elapsed();
    let script = script(&stage, &corpus, &cases, beside);
    let goods = script.iter().filter(|line| matches!(line.part, Part::Good(_))).count();
    let url = stage.world.urls.rabbitmq.clone();
    // The queues are full before the worker starts, so that its batches are.
    let (script, mut wrongs) = tokio::task::spawn_blocking(move || (publish(&url, &script), script))
        .await
        .map(|(w, s)| (s, w))
        .unwrap();
    let published = began.elapsed();
    let witnesses = |round: usize| {
        let good = |(name, consumer): (&String, &testbed::CorpusConsumer)| {
            consumer.good(name, &format!("good witness {round}")).unwrap()
        };
        // One that has a single good message gets copies of it: those are nobody's witnesses.
        corpus.consumers.iter().filter(|(_, consumer)| consumer.crowd).map(good).collect()
    };
    let run = stage.run(expected_decisions(&cases) + goods, witnesses).await;
    let done = began.elapsed();
    wrongs.extend(run.problems.iter().map(|problem| Wrong::of("(the run)", "", problem)));
    wrongs.extend(judge(&cases, &run));
    wrongs.extend(neighbours(&run.effects, &script));
    eprintln!(
        "bad messages {how}: {} cases {by_part:?} and {goods} good messages in batches of {batch}; \
         set up {ready:.1?}, published by {published:.1?}, settled by {done:.1?}, judged by {:.1?}; {} transactions",
        cases.len(),
        began.elapsed(),
        run.transactions
    );
    if beside > 0 {
        // Together, not one by one: else this would be the other test once more.
        assert!(run.transactions < goods / 8, "{} transactions", run.transactions);
    }
    let list: String = wrongs.iter().map(|wrong| format!("\n  {wrong}")).collect();
    assert!(wrongs.is_empty(), "{} of {} cases are wrong, {how}:{list}", wrongs.len(), cases.len());
}

/// A message on its way to a queue.
struct Line {
    exchange: String,
    posting: Posting,
    part: Part,
}

enum Part {
    /// It is the good neighbour of this case.
    Good(String),
    /// It is a case that the broker must refuse with this code.
    Refused(String, u16),
    /// It is what a case is about.
    Case(String),
}

fn script(stage: &Stage, corpus: &Corpus, cases: &[Case], beside: usize) -> Vec<Line> {
    let mut script = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let to = |posting: Posting, part| Line { exchange: stage.exchange(&posting.consumer), posting, part };
        let consumer = &case.message.consumer;
        let good = |n: usize| {
            let key = format!("good {number} {n}");
            to(corpus.consumers[consumer].good(consumer, &key).unwrap(), Part::Good(case.name.clone()))
        };
        if let Some((first, _)) = &case.first {
            script.push(to(first.clone(), Part::Case(case.name.clone())));
        }
        script.extend((0..beside).map(good));
        let part = match case.want.strip_prefix("refused ") {
            Some(code) => Part::Refused(case.name.clone(), code.parse().unwrap()),
            None => Part::Case(case.name.clone()),
        };
        script.push(to(case.message.clone(), part));
        script.extend((beside..2 * beside).map(good));
    }
    script
}

/// Publishes everything, in order; returns what the broker took and should not have, or the other way round.
fn publish(url: &str, script: &[Line]) -> Vec<Wrong> {
    let mut wrongs = Vec::new();
    let mut connection = RawConnection::open(url).unwrap();
    for (number, line) in script.iter().enumerate() {
        let posting = &line.posting;
        let send = |connection: &mut RawConnection| {
            connection.publish(&line.exchange, &posting.routing_key, &posting.wire, &posting.body)
        };
        match &line.part {
            Part::Good(_) => send(&mut connection).unwrap(),
            Part::Case(name) => {
                // Each case is confirmed by itself, so that a refusal is its own.
                let sent = send(&mut connection).and_then(|()| connection.wait_for_confirms());
                if let Err(error) = sent {
                    wrongs.push(Wrong::of(name, "taken by the broker", &format!("{error:#}")));
                    connection = RawConnection::open(url).unwrap();
                }
            }
            Part::Refused(name, code) => {
                // A refusal may cost the connection.
                let mut own = RawConnection::open(url).unwrap();
                let found = match send(&mut own).and_then(|()| own.wait_for_confirms()) {
                    Ok(()) => "taken".to_owned(),
                    Err(error) => match error.downcast_ref::<Refusal>() {
                        Some(refusal) if refusal.code == *code => continue,
                        _ => format!("{error:#}"),
                    },
                };
                wrongs.push(Wrong::of(name, &format!("refused with {code}"), &found));
            }
        }
        if number % 1_000 == 0 {
            connection.wait_for_confirms().unwrap();
        }
    }
    connection.wait_for_confirms().unwrap();
    wrongs
}

/// How many messages the worker decides about for good.
fn expected_decisions(cases: &[Case]) -> usize {
    let decided = |want: &str| want != "expired" && !want.starts_with("refused");
    let firsts = cases.iter().filter(|case| case.first.is_some()).count();
    firsts + cases.iter().filter(|case| decided(&case.want)).count()
}

/// The good ones took effect once each.
fn neighbours(effects: &BTreeMap<(String, String), Vec<stage::Seen>>, script: &[Line]) -> Vec<Wrong> {
    let mut lost: BTreeMap<&str, usize> = BTreeMap::new();
    for line in script {
        if let Part::Good(case) = &line.part {
            let posting = &line.posting;
            let found =
                effects.get(&(posting.consumer.clone(), posting.routing_key_seen())).map_or(0, Vec::len);
            if found != 1 {
                *lost.entry(case).or_default() += 1;
            }
        }
    }
    let wrong = |(case, count): (&str, usize)| {
        Wrong::of(case, "its good neighbours take effect once", &format!("{count} do not"))
    };
    lost.into_iter().map(wrong).collect()
}
