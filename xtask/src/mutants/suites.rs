//! Bugs that tests must find: what the judge of the fault runs does not look at.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use indicatif::ProgressBar;
use serde_json::Value;
use testbed::Servers;

use super::patch::Patch;
use super::{Finding, Outcome, Verdict, tell};
use crate::dynamodb::Moto;
use crate::process;
use crate::source_copy::{CopyLane, SourceCopy};

/// Where the tests are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    /// `tests/it`.
    It,
    /// `stores/dynamodb`, against moto.
    Dynamodb,
    /// The tests beside the code of a package of this name.
    Unit(&'static str),
}

/// A bug, and the tests of which each must fail with it.
pub(crate) struct Tested {
    /// The name of its patch.
    pub(crate) bug: &'static str,
    suite: Suite,
    caught_by: &'static [&'static str],
}

const fn it(bug: &'static str, caught_by: &'static [&'static str]) -> Tested {
    Tested { bug, suite: Suite::It, caught_by }
}

const fn dynamodb(bug: &'static str, caught_by: &'static [&'static str]) -> Tested {
    Tested { bug, suite: Suite::Dynamodb, caught_by }
}

const fn unit(bug: &'static str, package: &'static str, caught_by: &'static [&'static str]) -> Tested {
    Tested { bug, suite: Suite::Unit(package), caught_by }
}

const REDIS: &str = "lease_stores::redis_store::the_store_in_redis_conforms";
const POSTGRES: &str = "lease_stores::postgres::the_store_in_postgresql_conforms";
const DYNAMODB: &str = "the_store_in_dynamodb_conforms";

/// All such bugs.
pub(crate) const TESTED: &[Tested] = &[
    it(
        "fault_of_all_is_charged",
        &[
            "blame::environment::no_sqlstate_that_strikes_all_for_a_while_spends_an_attempt_and_each_that_strikes_one_does",
            "blame::environment::a_handler_that_finds_poison_in_all_stops_and_says_so",
        ],
    ),
    unit(
        "any_success_is_a_witness",
        "oncely-process",
        &["witnesses::tests::a_success_that_a_fault_of_all_explains_is_no_witness"],
    ),
    unit(
        "neighbours_are_witnesses",
        "oncely-core",
        &["blame::tests::what_a_message_can_cause_waits_for_a_witness_where_others_fail_as_well"],
    ),
    unit(
        "contention_needs_no_witness",
        "oncely-core",
        &["blame::tests::what_no_message_causes_by_itself_is_the_messages_only_where_another_one_succeeds"],
    ),
    it(
        "contention_is_charged",
        &["blame::hot_rows::a_batch_whose_turn_does_not_come_goes_on_message_by_message"],
    ),
    it(
        "outage_is_a_leased_messages",
        &[
            "leased::outages::what_a_handler_meets_while_postgresql_is_away_spends_no_attempt_whatever_succeeds_then",
        ],
    ),
    it(
        "lone_failure_is_never_judged",
        &[
            "blame::environment::a_message_that_is_alone_and_fails_is_judged_and_the_next_one_waits_for_a_witness",
        ],
    ),
    it(
        "events_fault_of_all_parks",
        &["events::refusals::what_strikes_all_events_for_a_while_parks_none_and_they_arrive_in_order"],
    ),
    it(
        "passing_state_ends_start",
        &["starting::programs_that_start_while_no_connection_is_free_wait_for_one"],
    ),
    it(
        "start_waits_for_nothing",
        &["starting::a_worker_waits_for_its_function_its_queue_its_rights_and_migrations"],
    ),
    it("any_encoding_will_do", &["starting::a_database_that_is_not_in_utf8_is_refused_with_what_to_do"]),
    it(
        "record_waits_for_a_dead_mirror",
        &["mirror::a_redis_that_takes_nothing_keeps_no_record_for_longer_than_its_entry_would_live"],
    ),
    it(
        "cluster_is_taken_for_a_mirror",
        &["starting::what_only_another_configuration_mends_ends_the_process"],
    ),
    it(
        "http_answers_before_commit",
        &["http::broken::a_handler_that_fails_commits_nothing_and_may_run_again"],
    ),
    it(
        "http_stores_5xx",
        &["http::table::an_answer_that_may_be_another_one_next_time_is_passed_on_and_not_stored"],
    ),
    it(
        "http_key_without_principal",
        &["http::table::the_same_key_with_another_request_is_told_nothing_of_the_first"],
    ),
    it("http_drops_with_client", &["http::broken::a_client_that_leaves_does_not_interrupt_its_handler"]),
    it(
        "http_refusal_keeps_writes",
        &["http::table::another_refusal_is_stored_and_what_the_handler_wrote_is_rolled_back"],
    ),
    it("http_replays_cookies", &["http::table::a_request_again_gets_the_same_bytes_and_no_handler_runs"]),
    it(
        "replays_lose_headers",
        &[
            "http::kept::a_stored_answer_keeps_its_headers_but_those_that_are_nobody_elses",
            "gateway::browser::an_answer_that_comes_again_has_the_headers_that_a_browser_needs",
        ],
    ),
    it(
        "unread_body_is_shared",
        &[
            "gateway::transport::a_body_that_a_service_leaves_unread_is_never_the_beginning_of_anothers_request",
            "http_handler::a_body_that_an_endpoint_leaves_unread_is_never_the_beginning_of_another_message",
        ],
    ),
    it(
        "early_answer_is_unheard",
        &["gateway::transport::an_answer_that_comes_before_the_body_was_read_is_judged"],
    ),
    // tests/it suspends a gateway; there it depends on the order in which tasks wake whether the bug shows.
    unit(
        "answer_in_time_is_unheard",
        "oncely-net",
        &["http_client::transport::tests::an_answer_that_is_read_a_little_late_counts"],
    ),
    it(
        "broken_answer_looks_whole",
        &["gateway::transport::an_answer_that_breaks_off_looks_broken_to_each_client"],
    ),
    it(
        "passed_answer_loses_its_length",
        &["gateway::transport::an_answer_that_breaks_off_looks_broken_to_each_client"],
    ),
    it(
        "rested_session_is_an_outage",
        &["leased::waiting::a_session_that_died_of_rest_does_not_keep_a_dead_runs_key"],
    ),
    it("waiting_keeps_the_prefetch", &["leased::waiting::copies_that_can_not_be_published_hold_no_place"]),
    // The test of a whole worker (rust_handlers) has passed with it.
    unit(
        "late_tenants_take_their_turn",
        "oncely-worker",
        &["worker::intake::turns::tests::those_of_a_late_tenant_wait_for_all_others_and_come_one_at_a_time"],
    ),
    unit(
        "late_tenants_do_not_rest",
        "oncely-worker",
        &[
            "worker::intake::aside::tests::those_of_late_tenants_come_back_one_at_a_time_and_rest_while_others_have_arrived",
        ],
    ),
    it("suspects_in_a_row", &["isolation::messages_that_have_to_run_alone_let_others_pass"]),
    it(
        "suspect_queues_for_runs",
        &["leased::waiting::suspects_among_runs_that_last_keep_no_fresh_message_waiting"],
    ),
    it(
        "claim_waits_for_a_transaction",
        &["sql_protocol::leases::claims_give_way_to_whoever_holds_the_key_in_a_transaction"],
    ),
    it(
        "fresh_session_takes_over",
        &["sql_protocol::leases::a_session_of_now_gives_a_holder_one_more_lease_to_renew"],
    ),
    it(
        "late_result_changes_nothing",
        &["sql_protocol::leases::what_becomes_known_late_resolves_an_unknown_outcome"],
    ),
    it("late_result_meets_another_run", &[POSTGRES]),
    it("run_that_was_told_unknown_goes_on", &[POSTGRES]),
    it(
        "call_ends_with_its_lease",
        &[
            "gateway::once::a_call_goes_on_when_another_gateway_has_taken_its_key_and_its_answer_is_the_answer",
            "leased::a_call_goes_on_without_its_message_when_another_run_has_the_key",
        ],
    ),
    it(
        "batches_wait_for_locks",
        &["blame::hot_rows::batches_of_several_processes_lose_no_deadlock_and_spend_no_attempt"],
    ),
    it(
        "turns_are_not_taken",
        &["blame::hot_rows::a_batch_whose_turn_does_not_come_goes_on_message_by_message"],
    ),
    it(
        "batches_at_any_pace",
        &[
            "blame::time::a_slow_handler_gets_small_batches_that_are_in_time_and_one_that_is_fast_again_gets_large_ones",
        ],
    ),
    it("parts_keep_their_locks", &["blame::hot_rows::a_part_of_a_batch_that_meets_a_lock_ends_the_batch"]),
    it("refusals_run_twice", &["blame::hot_rows::many_refusals_run_no_message_twice"]),
    it("canonical_json_without_bound", &["bounded_memory::messages::no_body_ends_a_worker_in_256_mib"]),
    it("body_becomes_a_tree", &["bounded_memory::messages::no_body_ends_a_worker_in_256_mib"]),
    it("headers_by_their_wire_size", &["bounded_memory::headers::no_headers_end_a_worker_in_256_mib"]),
    it("event_of_any_size_is_read", &["bounded_memory::events::no_event_ends_a_relay_in_256_mib"]),
    it("responses_without_bound", &["bounded_memory::responses::no_response_ends_a_worker_in_256_mib"]),
    it("numbers_are_written_out", &["bounded_memory::responses::no_number_ends_a_worker_in_256_mib"]),
    it("large_messages_at_once", &["bounded_memory::messages::no_number_of_lanes_ends_a_worker_in_256_mib"]),
    it("returned_bodies_are_read", &["bounded_memory::events::no_returned_event_ends_a_relay_in_256_mib"]),
    it(
        "bodies_of_any_size_are_read",
        &["bounded_memory::messages::a_message_that_is_too_large_to_be_read_stays_in_its_queue"],
    ),
    unit(
        "failed_returns_hold_up_arrivals",
        "oncely-worker",
        &[
            "worker::intake::arrivals::tests::what_has_arrived_is_tried_between_any_two_batches_from_aside_that_fail",
        ],
    ),
    unit(
        "untried_waits_count_as_locks",
        "oncely-process",
        &["witnesses::tests::one_that_meets_locks_for_a_minute_persists_and_one_that_only_waits_does_not"],
    ),
    unit(
        "late_tenants_fill_the_prefetch",
        "oncely-worker",
        &[
            "worker::intake::turns::tests::those_of_a_late_tenant_that_are_most_of_what_is_sent_ahead_make_room",
        ],
    ),
    unit(
        "chains_weigh_little",
        "oncely-amqp",
        &["headers::tests::a_table_of_one_entry_counts_as_much_as_its_node_takes"],
    ),
    it("events_in_one_order", &["events::order::large_events_of_ordering_keys_keep_no_other_waiting"]),
    it(
        "gaps_of_a_key_are_ignored",
        &["events::order::events_behind_one_that_another_relay_holds_are_left_to_it"],
    ),
    it(
        "renewals_scan_their_table",
        &["key_plans::a_function_about_one_key_reads_by_the_primary_key_whatever_its_plan_was_made_for"],
    ),
    it("events_wait_is_not_withdrawn", &["events::prompt::a_relay_at_work_has_withdrawn_its_announcement"]),
    it(
        "mirror_records_of_any_size",
        &["bounded_memory::processes::no_mirror_record_ends_a_relay_in_256_mib"],
    ),
    it("heartbeats_of_any_size", &["bounded_memory::processes::no_heartbeat_ends_a_command_in_256_mib"]),
    it("redis_takeover_keeps_the_token", &[REDIS]),
    unit(
        "suspects_side_by_side",
        "oncely-worker",
        &["worker::isolation::permit::tests::a_suspect_that_lasts_under_a_lease_keeps_no_lane_waiting"],
    ),
    it(
        "any_sqlstate_gives_up_a_key",
        &["lease_stores::postgres::no_sqlstate_that_an_argument_does_not_cause_gives_up_a_key"],
    ),
    it(
        "refused_letter_is_not_told",
        &["leased::blame::a_letter_that_cannot_be_written_is_told_of_and_written_when_it_can"],
    ),
    it("begin_is_withdrawn_while_it_lasts", &["lease_stores::postgres::of_two_tries_at_once_one_calls"]),
    it("lost_begin_stays", &["lease_stores::postgres::a_step_that_began_without_a_reply_was_not_called"]),
    it("silent_queue_holds_up_others", &["events::outages::a_queue_that_confirms_nothing_holds_up_no_other"]),
    it("takeover_from_snapshot", &["sql_protocol::leases::of_many_that_take_over_one_key_one_holds_it"]),
    it("redis_complete_without_token", &[REDIS]),
    it(
        "redis_callers_clock",
        &["lease_stores::redis_store::whoever_claims_says_how_long_and_never_what_time_it_is"],
    ),
    it(
        "redis_ttl_is_lease",
        &[
            REDIS,
            "lease_stores::redis_store::a_key_is_forgotten_after_its_retention_and_never_with_its_lease",
        ],
    ),
    it(
        "relay_may_delete",
        &[
            "catalogue::no_role_can_delete_from_empty_or_lock_a_table",
            "rights::attacks::a_relay_rewrites_no_row_and_reads_no_response",
        ],
    ),
    it(
        "client_has_room",
        &["rights::attacks::clients_whose_tenant_has_too_many_events_are_refused_and_nobody_else_is"],
    ),
    it(
        "tenant_auditor_plans",
        &["rights::tenants::no_plan_of_a_tenants_auditor_depends_on_the_rows_of_another"],
    ),
    it(
        "erasure_leaves_pending_tags",
        &["forgotten::what_is_forgotten_with_a_tenant_runs_again_whatever_was_on_its_way_to_the_mirror"],
    ),
    it(
        "key_is_as_old_as_its_first_claim",
        &[
            "forgotten::what_a_copy_may_still_ask_for_is_neither_collected_nor_erased",
            "forgotten::a_key_is_remembered_from_the_last_word_on_it",
        ],
    ),
    it(
        "allowed_repetition_is_a_first_call",
        &[
            "http_handler::a_call_that_may_have_happened_keeps_its_key_until_its_answer_whatever_is_refused_meanwhile",
            "sql_protocol::leases::what_may_have_happened_runs_again_only_when_somebody_says_so",
        ],
    ),
    it(
        "settled_no_keeps_its_round",
        &[
            "http_handler::an_operators_no_is_worth_a_calls_and_is_asked_for_before_a_letters_reason",
            "sql_protocol::leases::a_key_that_runs_left_open_can_be_settled_and_then_run_without_a_lease",
        ],
    ),
    unit(
        "tenants_aside_take_no_turns",
        "oncely-worker",
        &["worker::intake::aside::tests::tenants_take_turns_also_where_one_comes_back_at_a_time"],
    ),
    unit(
        "late_arrivals_wait_for_all_others",
        "oncely-worker",
        &[
            "worker::intake::arrivals::tests::one_of_a_late_tenant_runs_when_it_has_rested_however_many_others_arrive",
        ],
    ),
    unit(
        "late_tenants_rest_only_for_arrivals",
        "oncely-worker",
        &[
            "worker::intake::arrivals::tests::one_of_a_late_tenant_runs_when_it_has_rested_however_many_others_arrive",
        ],
    ),
    unit(
        "late_arrivals_go_before_others",
        "oncely-worker",
        &[
            "worker::intake::arrivals::tests::one_of_a_late_tenant_runs_when_it_has_rested_however_many_others_arrive",
        ],
    ),
    unit(
        "late_runs_never_end",
        "oncely-worker",
        &[
            "worker::intake::arrivals::tests::one_of_a_late_tenant_runs_when_it_has_rested_however_many_others_arrive",
        ],
    ),
    unit(
        "large_late_arrivals_stay",
        "oncely-worker",
        &[
            "worker::intake::turns::tests::those_of_a_late_tenant_have_room_in_number_and_bytes_and_for_two_minutes",
        ],
    ),
    unit(
        "returned_messages_are_old",
        "oncely-process",
        &["witnesses::tests::one_that_comes_back_from_its_queue_waits_anew"],
    ),
    it(
        "collisions_are_not_shown",
        &["blame::hot_rows::a_consumer_whose_transactions_collide_is_shown_as_contended"],
    ),
    it(
        "leased_arrivals_wait_for_a_success",
        &["leased::waiting::a_tenant_whose_messages_all_fail_keeps_no_other_one_waiting"],
    ),
    it(
        "other_policies_are_the_same_request",
        &[
            "gateway::once::an_answer_that_was_stored_under_another_policy_is_told_to_nobody",
            "http::policies::an_answer_is_given_again_only_where_the_requests_are_known_to_be_the_same",
        ],
    ),
    it(
        "idle_lanes_keep_marks",
        &["isolation::a_lane_that_was_cut_off_from_all_servers_takes_its_marks_back_while_it_is_idle"],
    ),
    it(
        "a_hundred_headers_are_all",
        &["gateway::transport::an_answer_of_many_headers_or_folded_ones_is_judged"],
    ),
    dynamodb("dynamo_takeover_unseen", &[DYNAMODB, "one_of_two_that_have_seen_the_same_takes_over"]),
    dynamodb("dynamo_own_write_is_unknown", &["a_write_that_was_tried_twice_is_known_as_ones_own"]),
    dynamodb("dynamo_ttl_is_lease", &["the_tables_ttl_is_the_retention_and_never_the_lease"]),
];

/// The server that a suite talks to.
enum Server {
    All(Box<Servers>),
    Moto(Moto),
    None,
}

impl Suite {
    async fn server(self) -> anyhow::Result<Server> {
        match self {
            Self::It => {
                eprintln!("starting PostgreSQL, RabbitMQ and Redis");
                Ok(Server::All(Box::new(Servers::start_private().await?)))
            }
            Self::Dynamodb => Ok(Server::Moto(Moto::start()?)),
            Self::Unit(_) => Ok(Server::None),
        }
    }

    /// `cargo test` here, or in a copy.
    fn command(self, copy: Option<&SourceCopy>) -> anyhow::Result<Command> {
        let arguments: &[&str] = match self {
            Self::It => &["test", "--package", "oncely", "--locked", "--test", "it"],
            Self::Dynamodb => &["test", "--locked", "--test", "conformance"],
            Self::Unit(package) => &["test", "--package", package, "--locked", "--lib", "--all-features"],
        };
        let root = copy.map_or_else(process::root, SourceCopy::tree);
        let (root, build) = match self {
            Self::It | Self::Unit(_) => (root, process::root().join("target")),
            Self::Dynamodb => (root.join(Moto::PACKAGE), Moto::target()?),
        };
        let mut command = process::cargo(&root);
        command.args(arguments);
        match (self, copy) {
            (Self::It | Self::Unit(_), Some(copy)) => copy.share(&mut command, "build", &build),
            (Self::Dynamodb, Some(copy)) => copy.share(&mut command, "dynamodb", &build),
            (Self::Dynamodb, None) => drop(command.arg("--target-dir").arg(build)),
            (Self::It | Self::Unit(_), None) => {}
        }
        Ok(command)
    }
}

impl Server {
    /// Variables by which the tests find it.
    fn environment(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::All(servers) => {
                let urls = servers.urls();
                vec![
                    ("DATABASE_URL", urls.postgres.clone()),
                    ("AMQP_URL", urls.rabbitmq.clone()),
                    ("REDIS_URL", urls.redis.clone()),
                ]
            }
            Self::Moto(moto) => vec![("DYNAMODB_URL", moto.url().to_owned())],
            Self::None => Vec::new(),
        }
    }
}

/// Plants each, and runs the tests that must fail with it; once for all, the same tests without any bug.
pub(super) async fn run(
    patches: &[Patch],
    chosen: &[&'static Tested],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Verdict>> {
    let mut verdicts = Vec::new();
    let mut suites: Vec<Suite> = Vec::new();
    for one in chosen {
        if !suites.contains(&one.suite) {
            suites.push(one.suite);
        }
    }
    for suite in suites {
        let chosen: Vec<&'static Tested> =
            chosen.iter().copied().filter(|mutant| mutant.suite == suite).collect();
        verdicts.extend(by_tests(patches, suite, &chosen, bar).await?);
    }
    Ok(verdicts)
}

/// Runs the mutants of a suite. While the tests of one run, the next one is built: a test that fails mostly waits.
async fn by_tests(
    patches: &[Patch],
    suite: Suite,
    chosen: &[&'static Tested],
    bar: &ProgressBar,
) -> anyhow::Result<Vec<Verdict>> {
    let server = suite.server().await?;
    let environment = Arc::new(server.environment());
    bar.set_message("without a bug");
    let all: BTreeSet<&'static str> = chosen.iter().flat_map(|mutant| mutant.caught_by).copied().collect();
    let tests: Vec<&'static str> = all.into_iter().collect();
    let program = blocking(move || TestProgram::build(suite, None)).await;
    let clean = match program {
        Ok(program) => {
            let environment = Arc::clone(&environment);
            blocking(move || program.run(&environment, &tests)).await
        }
        Err(error) => Err(error),
    };
    let coming = tokio::sync::Mutex::new(chosen.iter().copied());
    let lane = async |lane: CopyLane| -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        loop {
            let mut next = coming.lock().await;
            let Some(mutant) = next.next() else { break };
            bar.set_message(mutant.bug);
            let patch = patches.iter().find(|patch| patch.name == mutant.bug).cloned();
            let built = blocking(move || {
                let patch =
                    patch.with_context(|| format!("there is no xtask/mutants/{}.patch", mutant.bug))?;
                TestProgram::build(suite, Some(&patch.plant(lane)?))
            });
            let built = built.await;
            drop(next);
            let found = match built {
                Ok(program) => {
                    let environment = Arc::clone(&environment);
                    blocking(move || program.run(&environment, mutant.caught_by)).await
                }
                Err(error) => Err(error),
            };
            let verdict =
                Verdict { bug: mutant.bug, found: planted(mutant, found), clean: without(mutant, &clean) };
            tell(&verdict, bar);
            verdicts.push(verdict);
        }
        verdicts
    };
    let (mut verdicts, others) = tokio::join!(lane(CopyLane::First), lane(CopyLane::Second));
    verdicts.extend(others);
    verdicts.sort_by_key(|verdict| chosen.iter().position(|mutant| mutant.bug == verdict.bug));
    Ok(verdicts)
}

/// Runs work that blocks on a thread of its own.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await?
}

/// What the tests find with a bug; nothing where one of them does not fail that must.
fn planted(mutant: &Tested, failed: anyhow::Result<Vec<&'static str>>) -> Outcome {
    match failed {
        Ok(failed) if failed.len() == mutant.caught_by.len() => Ok(findings(failed.into_iter())),
        Ok(failed) => {
            let passed = mutant.caught_by.iter().filter(|test| !failed.contains(test));
            passed.for_each(|test| eprintln!("{}: {test} passes", mutant.bug));
            Ok(Vec::new())
        }
        Err(error) => Err(format!("{}: {error:#}", mutant.bug)),
    }
}

/// What they find without.
fn without(mutant: &Tested, failed: &anyhow::Result<Vec<&'static str>>) -> Outcome {
    match failed {
        Ok(failed) => Ok(findings(failed.iter().copied().filter(|test| mutant.caught_by.contains(test)))),
        Err(error) => Err(format!("without a bug: {error:#}")),
    }
}

fn findings(tests: impl Iterator<Item = &'static str>) -> Vec<Finding> {
    tests.map(|test| Finding { name: test.to_owned(), what: format!("{test} fails") }).collect()
}

/// A program of tests that was built. It is not called by Cargo, which would wait until the next one is built.
struct TestProgram {
    program: PathBuf,
    folder: PathBuf,
}

impl TestProgram {
    fn build(suite: Suite, copy: Option<&SourceCopy>) -> anyhow::Result<Self> {
        let mut command = suite.command(copy)?;
        command.args(["--no-run", "--message-format", "json"]);
        let output = command.stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "the tests do not compile:\n{text}");
        let messages = String::from_utf8_lossy(&output.stdout);
        let mut programs = messages
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|message| message["profile"]["test"] == true)
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
        let program = programs.next_back().context("cargo names no program of tests")?;
        let folder = command.get_current_dir().context("no folder")?.to_path_buf();
        Ok(Self { program, folder })
    }

    /// Runs tests by their full names; returns those that failed.
    fn run(
        &self,
        environment: &[(&'static str, String)],
        tests: &[&'static str],
    ) -> anyhow::Result<Vec<&'static str>> {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.folder).envs(environment.iter().map(|(name, value)| (name, value)));
        let output = command.arg("--exact").args(tests).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut failed = Vec::new();
        for test in tests {
            // `test NAME ... ok`, or FAILED: what a test prints itself is captured.
            let verdict = text
                .lines()
                .find_map(|line| line.strip_prefix("test ")?.strip_prefix(test)?.strip_prefix(" ... "));
            match verdict {
                Some("ok") => {}
                Some("FAILED") => failed.push(*test),
                _ => {
                    let words = String::from_utf8_lossy(&output.stderr);
                    anyhow::bail!("{test} did not run:\n{text}{words}");
                }
            }
        }
        Ok(failed)
    }
}
