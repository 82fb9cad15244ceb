//! For each bug the script that must bring it to light: traffic, faults at their moments, by hand.

use std::time::Duration;

use anyhow::Context as _;
use lapin::options::ExchangeDeleteOptions;
use sqlx::Connection as _;
use testbed::checker::events::{EXCHANGE, ORDERED};
use testbed::checker::{Act, Intent};
use testbed::faults::{Fault, Kind};
use testbed::proxy::Mode;
use testbed::{Arena, Neighbour, Server, Signal};

use super::settings::{
    HURRIED, LESS_HURRIED, ONE_ATTEMPT, ONE_BY_ONE, ONE_CRASH, ONE_EVENT_LANE, ONE_LANE, PATIENT, SLOW,
    Settings, TRUSTING, TWO_LANES,
};
use super::steps::{end_sessions, publish, some};
use super::{charges, findings};

/// A bug, and how its trial is set up.
pub(crate) struct Mutant {
    /// The name of its patch.
    pub(crate) bug: &'static str,
    /// How many workers.
    pub(crate) workers: usize,
    /// Settings: section, key, value.
    pub(crate) settings: Settings,
    /// Roles with few rights do what they may meanwhile.
    pub(crate) neighbours: &'static [Neighbour],
    /// A step at which processes end, with the bug and without.
    pub(crate) failpoint: Option<&'static str>,
    script: Script,
}

/// What happens.
#[derive(Clone, Copy)]
enum Script {
    KillInHandler,
    PoisonAmongGood,
    CopiesAtOnce,
    CutInHandler,
    KillBehindFinished,
    KillRelayInMirror,
    NoDeadLetterQueue,
    NoDeadLetterExchange,
    LateCommit,
    Restore,
    LostCommits,
    CollectPending,
    LostCommitReply,
    Killer,
    OtherPayload,
    Terminate,
    Revoke,
    KillRelayInPublish,
    FirstIsUnroutable,
    Unroutable,
    CopiesFail,
    BranchIsMissing,
    TemporaryTables,
    KeyIsHeld,
    SequenceIsUsedUp,
    CopiesRedelivered,
    FailOnce,
    CopyStays,
    SuspectIsSlow,
    Overheard,
    UsualWork,
    RequeueBrokenOff,
    KeyIsReplaced,
    AnotherFile,
    PausedForLong,
    ClockJumps,
    TrailDropped,
    PolicyChanges,
    HandlerIsSlow,
    UnreadableEvent,
    EndlessAtCommit,
    Endless,
    QueueDropsItsHead,
    PartitionUnderLoad,
    Charges(charges::Script),
}

const fn mutant(bug: &'static str, script: Script) -> Mutant {
    Mutant { bug, workers: 1, settings: &[], neighbours: &[], failpoint: None, script }
}

/// All bugs that can be planted.
pub(crate) const MUTANTS: &[Mutant] = &[
    Mutant { settings: ONE_BY_ONE, ..mutant("ack_before_commit", Script::KillInHandler) },
    mutant("commit_tag_ignored", Script::PoisonAmongGood),
    Mutant { workers: 2, settings: ONE_BY_ONE, ..mutant("check_then_act", Script::CopiesAtOnce) },
    Mutant { workers: 2, settings: ONE_BY_ONE, ..mutant("claim_in_one_statement", Script::CopiesAtOnce) },
    Mutant { settings: ONE_BY_ONE, ..mutant("ack_on_stale_channel", Script::CutInHandler) },
    Mutant { settings: TWO_LANES, ..mutant("ack_over_a_gap", Script::KillBehindFinished) },
    mutant("relay_deletes_first", Script::KillRelayInMirror),
    mutant("no_mandatory", Script::NoDeadLetterQueue),
    Mutant { settings: TWO_LANES, ..mutant("id_cursor", Script::LateCommit) },
    Mutant { settings: TRUSTING, ..mutant("no_epoch", Script::Restore) },
    mutant("trust_without_durability", Script::LostCommits),
    mutant("collect_pending", Script::CollectPending),
    mutant("unknown_commit_is_failure", Script::LostCommitReply),
    mutant("copy_unconfirmed", Script::NoDeadLetterExchange),
    Mutant { failpoint: Some("worker.handle.before=key:kill"), ..mutant("never_isolate", Script::Killer) },
    mutant("conflict_is_duplicate", Script::OtherPayload),
    Mutant { settings: ONE_ATTEMPT, ..mutant("outage_spends_attempt", Script::Terminate) },
    Mutant { settings: ONE_ATTEMPT, ..mutant("environment_is_poison", Script::Revoke) },
    mutant("event_deleted_before_confirm", Script::KillRelayInPublish),
    mutant("event_order_ignored", Script::FirstIsUnroutable),
    mutant("mandatory_ignored", Script::Unroutable),
    Mutant { settings: ONE_BY_ONE, ..mutant("copies_spend_attempts", Script::CopiesFail) },
    mutant("environment_pins_its_lane", Script::TemporaryTables),
    mutant("environment_is_nobodys", Script::BranchIsMissing),
    mutant("held_key_pins_its_batch", Script::KeyIsHeld),
    mutant("used_up_sequence_is_poison", Script::SequenceIsUsedUp),
    Mutant { settings: ONE_CRASH, ..mutant("live_runs_are_deaths", Script::CopiesRedelivered) },
    Mutant {
        settings: TRUSTING,
        neighbours: &[Neighbour::Listener],
        ..mutant("mirror_hit_without_evidence", Script::FailOnce)
    },
    Mutant { settings: ONE_BY_ONE, ..mutant("unfit_queue_is_taken", Script::QueueDropsItsHead) },
    Mutant { settings: TWO_LANES, ..mutant("trail_is_not_locked", Script::PartitionUnderLoad) },
    Mutant { settings: ONE_LANE, ..mutant("copy_keeps_its_lane", Script::CopyStays) },
    Mutant { settings: PATIENT, ..mutant("suspect_stops_everybody", Script::SuspectIsSlow) },
    Mutant { settings: SLOW, ..mutant("statements_end_before_the_deadline", Script::HandlerIsSlow) },
    Mutant { settings: HURRIED, ..mutant("commit_has_no_deadline", Script::EndlessAtCommit) },
    Mutant { settings: LESS_HURRIED, ..mutant("late_messages_pin_their_batch", Script::Endless) },
    Mutant { settings: ONE_EVENT_LANE, ..mutant("unreadable_event_ends_the_relay", Script::UnreadableEvent) },
    mutant("letters_are_published_unremembered", Script::RequeueBrokenOff),
    mutant("unknown_key_is_forged", Script::KeyIsReplaced),
    mutant("policies_are_compared", Script::PolicyChanges),
    mutant("collection_believes_its_file", Script::AnotherFile),
    mutant("collection_ignores_pauses", Script::PausedForLong),
    mutant("clock_jump_is_believed", Script::ClockJumps),
    mutant("trail_without_a_floor", Script::TrailDropped),
    Mutant { neighbours: &[Neighbour::Client], ..mutant("claims_without_rights", Script::Overheard) },
    Mutant { neighbours: &[Neighbour::Stranger], ..mutant("emits_without_rights", Script::Overheard) },
    Mutant { neighbours: &[Neighbour::Creator], ..mutant("names_are_looked_up_anywhere", Script::UsualWork) },
    mutant("complete_without_token", Script::Charges(charges::Script::EndsFrozen)),
    mutant("checkpoint_without_token", Script::Charges(charges::Script::CallsFrozen)),
    mutant("worker_clock_expiry", Script::Charges(charges::Script::Copies)),
    mutant("reentrant_by_process", Script::Charges(charges::Script::Copies)),
    mutant("in_flight_is_duplicate", Script::Charges(charges::Script::Killed)),
    mutant("ack_at_claim", Script::Charges(charges::Script::Killed)),
    mutant("step_key_per_attempt", Script::Charges(charges::Script::Killed)),
    mutant("window_ignored", Script::Charges(charges::Script::Torn)),
    mutant("unknown_repeated", Script::Charges(charges::Script::Torn)),
    mutant("outage_fails_the_run", Script::Charges(charges::Script::BrokenOff)),
];

/// Plays a script up to the moment from which the work may end by itself.
pub(crate) async fn play(mutant: &Mutant, arena: &mut Arena) -> anyhow::Result<()> {
    for worker in 0..arena.workers.len() {
        arena.wait_for_log(worker, "subscribed", 1).await?;
    }
    match mutant.script {
        Script::KillInHandler => kill_in_handler(arena).await,
        Script::PoisonAmongGood => {
            let mut all = some(10, Act::Work, "good");
            all.extend(some(1, Act::Divide, "bad"));
            publish(arena, all).await
        }
        Script::CopiesAtOnce => copies_at_once(arena).await,
        Script::CutInHandler => cut_in_handler(arena).await,
        Script::KillBehindFinished => kill_behind_finished(arena).await,
        Script::KillRelayInMirror => kill_relay_in_mirror(arena).await,
        Script::NoDeadLetterQueue => {
            arena.broker().await?.delete_queue(&format!("{}.dead", arena.queue())).await?;
            rejected_without_a_way(arena).await
        }
        Script::NoDeadLetterExchange => {
            let broker = arena.broker().await?;
            let exchange = format!("{}.dlx", arena.queue());
            broker
                .channel()
                .exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default())
                .await?;
            rejected_without_a_way(arena).await
        }
        Script::LateCommit => late_commit(arena).await,
        Script::Restore => restore(arena).await,
        Script::LostCommits => lost_commits(arena).await,
        Script::CollectPending => collect_pending(arena).await,
        Script::LostCommitReply => {
            arena.inject(&Fault::of(Kind::LoseCommitReply)).await?;
            publish(arena, some(20, Act::Work, "k")).await
        }
        Script::Killer => {
            let mut all = some(10, Act::Work, "good");
            all.extend(some(1, Act::Kill, "kill"));
            publish(arena, all).await
        }
        Script::OtherPayload => {
            publish(arena, some(3, Act::Work, "k")).await?;
            arena.wait_for_effects(3).await?;
            let other = (0..3).map(|n| Intent::new("acme", &format!("k-{n}"), Act::Work, 1)).collect();
            publish(arena, other).await
        }
        Script::Terminate => {
            publish(arena, some(20, Act::Slow, "slow")).await?;
            arena.wait_until("a handler at work", BUSY, 1).await?;
            arena.run_fault(&Fault::of(Kind::TerminateBackends)).await
        }
        Script::Revoke => {
            let fault = Fault::of(Kind::RevokeGrant);
            arena.inject(&fault).await?;
            publish(arena, some(10, Act::Work, "k")).await?;
            arena.hold(&fault).await;
            arena.heal(&fault).await
        }
        Script::KillRelayInPublish => kill_relay_in_publish(arena).await,
        Script::FirstIsUnroutable => first_is_unroutable(arena).await,
        Script::Unroutable => unroutable(arena).await,
        Script::CopiesFail => findings::copies_fail(arena).await,
        Script::BranchIsMissing => findings::branch_is_missing(arena).await,
        Script::TemporaryTables => findings::temporary_tables(arena).await,
        Script::KeyIsHeld => findings::key_is_held(arena).await,
        Script::SequenceIsUsedUp => findings::sequence_is_used_up(arena).await,
        Script::CopiesRedelivered => findings::copies_redelivered(arena).await,
        Script::FailOnce => findings::fail_once(arena).await,
        Script::CopyStays => findings::copy_stays(arena).await,
        Script::SuspectIsSlow => findings::suspect_is_slow(arena).await,
        Script::Overheard => findings::overheard(arena).await,
        Script::UsualWork => findings::usual_work(arena).await,
        Script::RequeueBrokenOff => findings::requeue_broken_off(arena).await,
        Script::KeyIsReplaced => findings::key_is_replaced(arena).await,
        Script::AnotherFile => findings::another_file(arena).await,
        Script::PausedForLong => findings::paused_for_long(arena).await,
        Script::ClockJumps => findings::clock_jumps(arena).await,
        Script::TrailDropped => findings::trail_dropped(arena).await,
        Script::PolicyChanges => findings::policy_changes(arena).await,
        Script::HandlerIsSlow => findings::handler_is_slow(arena).await,
        Script::UnreadableEvent => findings::unreadable_event(arena).await,
        Script::EndlessAtCommit => findings::endless_at_commit(arena).await,
        Script::Endless => findings::endless(arena).await,
        Script::QueueDropsItsHead => findings::queue_drops_its_head(arena).await,
        Script::PartitionUnderLoad => findings::partition_under_load(arena).await,
        Script::Charges(script) => charges::play(script, arena).await,
    }
}

/// A handler sleeps.
pub(super) const BUSY: &str = "select least(count(*), 1) from pg_stat_activity where wait_event = 'PgSleep'";

/// The process dies while a handler is in the middle of its work.
async fn kill_in_handler(arena: &mut Arena) -> anyhow::Result<()> {
    let gate = arena.shut_gates().await?;
    publish(arena, some(3, Act::Gate, "k")).await?;
    arena.wait_for_sessions(1).await?;
    arena.run_fault(&Fault::of(Kind::KillWorker)).await?;
    end_sessions(arena).await?;
    gate.open().await
}

/// Both workers have a copy of each message at the same time.
async fn copies_at_once(arena: &mut Arena) -> anyhow::Result<()> {
    for number in 0..8 {
        let key = format!("k-{number}");
        let gate = arena.shut_gates().await?;
        let copy = Intent::new("acme", &key, Act::Gate, 0);
        publish(arena, vec![copy.clone(), copy]).await?;
        // One in its handler, the other one behind the first one's claim, which waits half a second; or, without claims, both in the
        // handler. Both may have gone to one worker, one after another: then only one waits.
        arena.wait_for_sessions_within(2, Duration::from_secs(3)).await;
        gate.open().await?;
        arena.wait_until("nobody waits", "select count(*) from pg_locks where not granted", 0).await?;
    }
    Ok(())
}

/// The channel goes while a handler works; its successor's deliveries have the same numbers. Then the process dies.
async fn cut_in_handler(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(4, Act::Work, "before")).await?;
    arena.wait_for_effects(4).await?;
    let mut gate = arena.shut_gates().await?;
    let mut all = some(1, Act::Gate, "first");
    all.extend(some(5, Act::SecondGate, "then"));
    publish(arena, all).await?;
    arena.wait_for_sessions(1).await?;
    arena.run_fault(&Fault::of(Kind::CloseConnections)).await?;
    arena.wait_for_log(0, "subscribed", 2).await?;
    gate.open_first().await?;
    arena.wait_for_effects(5).await?;
    // The acknowledgement that nobody may send is sent before the lane takes its next batch.
    arena.wait_for_sessions(1).await?;
    arena.run_fault(&Fault::of(Kind::KillWorker)).await?;
    end_sessions(arena).await?;
    gate.open().await
}

/// One lane is in the middle of its work, the other one finishes what came later. Then the process dies.
async fn kill_behind_finished(arena: &mut Arena) -> anyhow::Result<()> {
    let gate = arena.shut_gates().await?;
    publish(arena, some(1, Act::Gate, "first")).await?;
    arena.wait_for_sessions(1).await?;
    publish(arena, some(4, Act::Work, "later")).await?;
    arena.wait_for_effects(4).await?;
    arena.run_fault(&Fault::of(Kind::KillWorker)).await?;
    end_sessions(arena).await?;
    gate.open().await
}

/// The relay dies while Redis does not answer.
async fn kill_relay_in_mirror(arena: &mut Arena) -> anyhow::Result<()> {
    arena.want_complete_mirror();
    let frozen = Fault::of(Kind::FreezeRedis);
    arena.inject(&frozen).await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    // Long enough for a relay to be in the middle of it: it looks every 100 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    arena.run_fault(&Fault::of(Kind::KillRelay)).await?;
    arena.heal(&frozen).await
}

/// Messages are to be dead-lettered, and there is no way; it comes back.
async fn rejected_without_a_way(arena: &mut Arena) -> anyhow::Result<()> {
    // No more than there are lanes: each waits with its batch, which may be a single message.
    publish(arena, some(2, Act::Reject, "k")).await?;
    arena
        .wait_until("decided", "select count(*) from oncely.idempotency_keys where status = 'FAILED'", 2)
        .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    arena.oncely(&["topology", "apply"]).await
}

/// A transaction whose mirror record came first commits last.
async fn late_commit(arena: &mut Arena) -> anyhow::Result<()> {
    let mut other = arena.connect().await?;
    let mut holds = other.begin().await?;
    sqlx::query("insert into judge.late values (7)").execute(&mut *holds).await?;
    publish(arena, some(1, Act::Late, "late")).await?;
    arena.wait_for_sessions(1).await?;
    publish(arena, some(5, Act::Work, "k")).await?;
    arena.wait_for_effects(5).await?;
    arena.wait_until_mirrored().await?;
    holds.rollback().await?;
    arena.wait_for_effects(6).await
}

/// Everything is lost but what Redis remembers.
const LOSE: &str =
    "delete from oncely.idempotency_keys; delete from oncely.audit; delete from oncely.mirror_queue;
    delete from judge.effects; delete from judge.log";

/// The database comes back from a backup that is older than the mirror; then the messages come again.
async fn restore(arena: &mut Arena) -> anyhow::Result<()> {
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena.wait_until_mirrored().await?;
    arena.forget_mirror().await?;
    arena.sql("update oncely.cell set history_id = gen_random_uuid()").await?;
    arena.sql(LOSE).await?;
    // Of another server, as it were: nobody has a session from before.
    end_sessions(arena).await?;
    // A worker trusts an epoch for one second.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    publish(arena, some(10, Act::Work, "k")).await
}

/// A crash loses commits that were reported, at the same epoch; then the messages come again.
async fn lost_commits(arena: &mut Arena) -> anyhow::Result<()> {
    arena.sql("alter system set synchronous_commit = off").await?;
    arena.sql("select pg_reload_conf()").await?;
    // The workers ask every quarter of a second how durable commits are.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena.wait_until_mirrored().await?;
    arena.sql(LOSE).await?;
    publish(arena, some(10, Act::Work, "k")).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    arena.sql("alter system reset synchronous_commit").await?;
    arena.sql("select pg_reload_conf()").await
}

/// Keys are old enough to be collected while their mirror record waits.
async fn collect_pending(arena: &mut Arena) -> anyhow::Result<()> {
    for relay in &arena.relays {
        relay.process.signal(Signal::STOP)?;
    }
    publish(arena, some(10, Act::Work, "k")).await?;
    arena.wait_for_effects(10).await?;
    arena
        .sql(
            "update oncely.idempotency_keys
             set created_at = created_at - interval '30 days', completed_at = completed_at - interval '30 days';
             update oncely.mirror_queue
             set created_at = created_at - interval '30 days', expires_at = expires_at - interval '30 days'",
        )
        .await?;
    arena.oncely(&["gc", "run"]).await?;
    for relay in &arena.relays {
        relay.process.signal(Signal::CONT)?;
    }
    Ok(())
}

/// No event is left in the outbox.
const EVENTS: &str = "select count(*) from oncely.events";
/// Events of which no try has failed. An attempt is spent only once another event has arrived.
const UNTRIED: &str = "select count(*) from oncely.events where reason is null";

/// The relay dies while the broker does not answer it.
async fn kill_relay_in_publish(arena: &mut Arena) -> anyhow::Result<()> {
    // The relay opens its connections for the first event.
    arena.sql("select judge.tell('script', null), judge.tell('script', 'a')").await?;
    arena.wait_until("an empty outbox", EVENTS, 0).await?;
    let way = arena.relays.first().and_then(|relay| relay.link(Server::RabbitMq)).context("no relay")?;
    way.set(Mode::BlackHole);
    arena
        .sql("select judge.tell('script', null), judge.tell('script', 'a') from generate_series(1, 10)")
        .await?;
    // Long enough for a relay to be in the middle of it: it looks every 100 ms.
    tokio::time::sleep(Duration::from_millis(500)).await;
    arena.run_fault(&Fault::of(Kind::KillRelay)).await?;
    let way = arena.relays.first().and_then(|relay| relay.link(Server::RabbitMq)).context("no relay")?;
    // What was under way is lost with the connection.
    way.cut();
    way.set(Mode::Pass);
    Ok(())
}

/// The first of three events finds no queue; then there is one.
async fn first_is_unroutable(arena: &mut Arena) -> anyhow::Result<()> {
    arena.sql("select judge.tell('script', 'a', 'nowhere'), judge.tell('script', 'a'), judge.tell('script', 'a')").await?;
    arena.wait_until("a failure", "select count(*) from oncely.events where attempts > 0", 1).await?;
    arena.broker().await?.bind(ORDERED.0, EXCHANGE, "nowhere").await
}

/// Events find no queue; then there is one.
async fn unroutable(arena: &mut Arena) -> anyhow::Result<()> {
    let fault = Fault::of(Kind::UnbindEvents);
    arena.inject(&fault).await?;
    arena.sql("select judge.tell('script', null) from generate_series(1, 10)").await?;
    arena.wait_until("events that were tried", UNTRIED, 0).await?;
    arena.heal(&fault).await
}
