//! The only place with SQL on Oncely's tables. Functions take a connection or a transaction; long statements are in `.sql` files beside the
//! Rust that calls them and are checked at compile time.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

mod ability;
mod address;
mod audit;
mod audit_seal;
mod backlog;
mod citus_state;
mod claim;
mod clock_check;
mod collection;
mod complete;
mod condition;
mod connection;
mod consumers;
mod control;
mod dead_letter;
mod distribute;
pub mod equivalent_sql;
mod error;
mod event;
mod event_listener;
mod event_operator;
mod event_relay;
mod first_run;
mod hosts;
mod http_answer;
mod identity_sample;
mod inspect;
mod json_text;
mod key_contents;
mod key_list;
mod last_outage;
mod lease;
mod lease_client;
mod lease_list;
mod letter_change;
mod letter_list;
mod letter_quota;
mod lock_holder;
mod login;
mod maintenance_state;
mod memory;
mod migrate;
mod migration_lock;
mod migration_plan;
mod mirror_again;
mod mirror_queue;
mod observed;
mod operator_action;
mod ordering_key;
mod park;
mod partition;
pub mod process;
mod refuse;
mod rehearsal;
mod reply;
mod request_claim;
mod right;
mod search_path;
mod secret;
mod seed;
mod server;
mod session;
mod session_factory;
mod session_pool;
mod settings;
mod settle;
mod stats;
mod status_queries;
mod suspect;
mod tenant;
mod tenant_groups;
mod tenant_node;
mod timelines;
mod trail;
mod turn;
mod unit;
mod unknown_keys;
mod vacuum;
mod wal;

pub use ability::{Abilities, read_abilities};
pub use address::{Address, AddressError, classify_tls_fault, parse_url_files};
pub use audit::AuditRecord;
pub use audit::append as append_audit;
pub use audit_seal::Seal;
pub use audit_seal::{
    DroppedSpan, ErasedSpans, compute_audit_digest, count_audit, list_seals, read_dropped_span,
    read_erased_spans, seal_audit, set_seal_formats,
};
pub use backlog::{
    Backlog, WaitingLetters, count_waiting_letters, count_waiting_letters_with_reason, read_backlog,
};
pub use citus_state::{CitusState, read_citus_state};
pub use claim::{
    FreshClaim, claim, claim_fresh, is_aborted, is_locked, is_role_missing, is_taken, look_up, retake,
};
pub use clock_check::ObservedClock;
pub use clock_check::{accept_clock, observe_clock, read_clock_refusal_time};
pub use collection::{
    CollectedBatch, begin_collection, collect_batch, collect_expired, count_expired, count_self_expired,
    try_lock as try_collection_lock, unlock as release_collection_lock,
};
pub use collection::{CollectionReport, ConsumerCollection};
pub use complete::{KeyFailure, record_failures, store_responses};
pub use connection::wait_for_answer;
pub use consumers::{KnownConsumer, list_consumers};
pub use consumers::{
    RegisteredSettings, Registration, RetentionRule, list_retention_rules, list_retentions, read_mirror_ttl,
    register_consumer, register_mirror_ttl, register_shared, set_retention,
};
pub use control::{Pause, list_pauses, pause_consumer, resume_consumer};
pub use dead_letter::{DeadLetter, collect as collect_letters, store_letters};
pub use distribute::{DistributeError, Distribution, distribute};
pub use error::{
    Outage, PgFault, affects_all_sessions, classify, classify_handler, classify_handler_sqlstate,
    classify_sqlstate, is_outage,
};
pub use error::{
    classify_cause, describe, ends_session, format_operator_text, is_cancelled, is_slow, is_temporary,
    set_server_texts_shown,
};
pub use event::emit;
pub use event::emit_for;
pub use event_listener::EventListener;
pub use event_operator::{EventChange, EventChangeAuthor, change_events};
pub use event_operator::{EventFilter, EventRow, EventStatus, list_events, read_event_status};
pub use event_relay::{
    EventFailure, OrderingKeyCursor, TakeLimits, TakenEvent, delete_events, fail_events, has_events,
    read_database_time, take_events, take_ordered,
};
pub use first_run::read_first_runs;
pub use http_answer::{
    AnswerTrace, HttpAnswer, StoredAnswer, parse_headers, store_http_answer, to_headers_json,
};
pub use identity_sample::{IdentitySample, sample_identities};
pub use inspect::{
    AuditFilter, AuditRow, KeyDetails, MAX_RECENT_ROWS, MirrorQueueStatus, list_audit, read_key_details,
    read_mirror_queue_status,
};
pub use inspect::{
    HandlerFunction, RecentOutcome, TableStatistics, count_recent_outcomes, list_handler_functions,
    list_login_roles, read_login_without_schema_usage, read_table_statistics,
};
pub use json_text::{MAX_JSON_BYTES, to_json_text};
pub use key_contents::KeyContents;
pub use key_list::{KeyRow, KeyWalk, list_keys};
pub use last_outage::LastOutage;
pub use lease::{BegunStep, RefusedCall, RenewOutcome, StepState};
pub use lease::{
    GrantedLease, LeaseClaim, LeaseClaimOutcome, LeaseCompletion, LeaseFailOutcome, LeaseFailure, LeaseIdRef,
    LeaseTrace, begin_step, checkpoint, complete_lease, complete_leases, fail_lease, is_lease_lost,
    read_step_result, read_transaction_id, refuse_step, release_lease, renew_leases, take_leases,
};
pub use lease_client::{ClientClaim, claim_lease, read_lease_state, renew_lease};
pub use lease_list::{
    HeldCount, HeldLease, LeaseFilter, LeaseStep, count_held_leases, list_held_leases, revoke_lease,
};
pub use letter_change::{
    KeyUse, LetterDecision, LetterState, PlannedLetter, RequeueDecision, StoredMessage, TenantLetter,
    announce_requeue, begin_requeue, count as count_letters, count_returned as count_returned_letters,
    decide_letters, finish_requeue, is_requeue_under_way, list_keys_in_use, list_planned_letters,
    lock_free_requeueing as lock_free_requeueing_letters, lock_requeueing as lock_requeueing_letters,
    mark_swept, read_letter_states, read_messages,
};
pub use letter_list::{LetterFilter, LetterGroup, LetterRow, list_letter_groups, list_letters};
pub use letter_list::{LetterTrend, count_letter_trends, count_open_letters};
pub use letter_quota::{
    EffectiveRetention, Quota, TenantLimits, TenantOverQuota, TenantRetention, TenantUsage, count_stored,
    limit_tenant, list_tenant_usages, list_tenants_over_quota,
};
pub use lock_holder::{LockHolder, list_lock_holders};
pub use login::{LoginPrivileges, list_missing_privileges, read_login_privileges};
pub use maintenance_state::{MaintenanceState, default_partition_has_rows, read_maintenance_state};
pub use migrate::{MIGRATOR, MigrationState, read_migration_state};
pub use migrate::{MigrationTry, try_migration};
pub use migration_lock::{BlockedSessions, LockedWork, TableLock, UnclearLock, parse_migration_locks};
pub use migration_plan::{PlannedLock, list_pending_locks, measure_locked};
pub use mirror_again::{KeyPosition, queue_mirror_again, sample_mirrored_keys};
pub use mirror_queue::{
    MAX_RECORD_TAG_BYTES, MirrorContent, MirrorRecord, append_mirror, delete as delete_mirrored, take_mirror,
};
pub use observed::{ConflictingKey, ObservedCount, count_observed, list_conflicting_keys};
pub use operator_action::{Action, ActionRow, list_recent_actions, record_action};
pub use ordering_key::collect_ordering_keys;
pub use park::{ParkOutcome, park};
pub use partition::{create as create_partition, drop_oldest as drop_partition, read_audit_floor};
pub use process::{
    Process, ProcessRow, Readiness, SILENCE_TIME, delete_processes_before, disable_synchronous_commit,
    forget as forget_processes, list_processes, record_end, record_heartbeat,
};
pub use refuse::{Refusal, record_refusals};
pub use rehearsal::{
    EmittedEvent, TableChanges, begin_rehearsal, defer_again, keep_from_savepoint, list_events_since,
    read_table_changes, run_deferred, set_savepoint, undo_to_savepoint,
};
pub use reply::{Reply, write_replies};
pub use request_claim::{RequestClaim, claim_request, retake_request};
pub use right::{RightFilter, RightRow, grant_right, list_rights, revoke_rights};
pub use search_path::{
    LockWait, backdate_session, begin, begin_anew, begin_on_pool, begin_request, begin_request_anew,
    begin_to_claim, enter_handler, leave_request,
};
pub use secret::{
    SecretRow, Secrets, forget_secrets, list_secrets, read_mirror_keys, read_secrets, read_signing_secrets,
    rotate_secret,
};
pub use seed::{MAX_SEEDS, Seed, SeedConflict, seed_keys};
pub use server::{
    ServerSettings, describe_unfit_encoding, is_read_only, read_clock, read_server_encoding,
    read_server_settings, read_server_version, set_read_only,
};
#[cfg(feature = "testing")]
pub use session::end_backend_now;
pub use session::{
    Backend, cancel_backend, end_backend, is_at_work, is_standby, limit_lock_wait, prefer_indexes,
    read_backend_pid, read_database_status, remove_statement_timeout, wait_for_standby,
};
pub use session::{DatabaseCell, DatabaseClock, Session};
pub use session_factory::{NoSession, SessionFactory};
pub use session_pool::{PoolLimits, PooledSession, SessionOpener, SessionPool};
pub use settings::{CitusSettings, HostState, NodeAddress, PgSettings, split_address};
pub use settle::settle_claim;
pub use stats::{
    ConsumerStats, RelayStats, prune_stats, read_consumer_stats, read_relay_stats, record_relay_stats,
    record_stats, roll_up_stats,
};
pub use status_queries::{
    ConsumerKeyCounts, FailingKey, QueueLetters, count_queue_letters, list_failing_keys,
    read_consumer_key_counts,
};
pub use suspect::{mark_suspects, unmark_suspects};
pub use tenant::{
    TenantCounts, TenantTable, block_rebuilds, close_letters, count_tenant_rows, erase_actions, erase_keys,
    erase_pending_tags, erase_rows, erase_silent_processes, erase_trail_span, has_mirror, list_tenant_queues,
    read_tenant_contents, read_tenant_payloads,
};
pub use tenant_node::{TenantNode, find_tenant_nodes, is_spread};
pub use timelines::Timelines;
pub use trail::{
    Position, TrailFilter, count_trail_rows, read_first_trail_week, read_oldest_trail_time, read_trail_page,
    summarize_trail,
};
pub use turn::take_turn;
pub use unit::{Unit, list_units};
pub use unknown_keys::count_unknown_keys;
pub use vacuum::{
    list_dead_rows, list_invalid_indexes, list_old_transactions, list_replication_slots,
    read_login_without_activity,
};
pub use wal::{WalActivity, read_wal_activity};
