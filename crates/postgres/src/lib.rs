//! The only place with SQL on Oncely's tables. Functions take a connection or a transaction; long statements are in `.sql` files beside the
//! Rust that calls them and are checked at compile time.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

mod ability;
mod address;
mod audit;
mod audit_seal;
mod backlog;
mod claim;
mod clock_check;
mod collection;
mod complete;
mod condition;
mod connection;
mod consumers;
mod control;
mod dead_letter;
pub mod equivalent_sql;
mod error;
mod event;
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
mod timelines;
mod trail;
mod turn;
mod unknown_keys;
mod vacuum;

pub use ability::{Abilities, abilities};
pub use address::{Address, AddressError, files_of_url, tls_fault};
pub use audit::AuditRecord;
pub use audit::append as append_audit;
pub use audit_seal::Seal;
pub use audit_seal::{
    DroppedSpan, ErasedSpans, audit_count, audit_digest, dropped, erased_spans, look_as_sealed, seal_audit,
    seals,
};
pub use backlog::{Backlog, WaitingLetters, backlog, waiting_letters, waiting_letters_of};
pub use claim::{FreshClaim, claim, claim_fresh, is_aborted, is_locked, is_taken, look_up, retake};
pub use clock_check::ObservedClock;
pub use clock_check::{accept_clock, clock_refused_at, observe_clock};
pub use collection::{
    CollectedBatch, collect_batch, collect_expired, count_expired, count_self_expired, past_requeues,
    try_lock as try_collection_lock, unlock as collection_unlock,
};
pub use collection::{CollectionReport, ConsumerCollection};
pub use complete::{KeyFailure, fail, store_responses};
pub use connection::within;
pub use consumers::{KnownConsumer, known_consumers};
pub use consumers::{
    RegisteredSettings, Registration, RetentionRule, memories, mirror_ttl, register_consumer,
    register_mirror_ttl, register_shared, retentions, set_retention,
};
pub use control::{Pause, pause_consumer, pauses, resume_consumer};
pub use dead_letter::{DeadLetter, collect as collect_letters, store_letters as keep_letters};
pub use error::{
    Outage, PgFault, affects_all_sessions, class_of, classify, classify_handler, handler_class_of, is_outage,
};
pub use error::{describe, fault_within, is_cancelled, is_slow, operator_text, passes, tell_server_texts};
pub use event::emit;
pub use event::emit_for;
pub use event_operator::{EventChange, EventChangeAuthor, change_events};
pub use event_operator::{EventFilter, EventRow, EventStatus, event_status, events};
pub use event_relay::{
    EventFailure, OrderingKeyCursor, TakeLimits, TakenEvent, database_time, delete_events, fail_events,
    take_events, take_ordered,
};
pub use first_run::first_runs;
pub use http_answer::{AnswerTrace, HttpAnswer, StoredAnswer, header_pairs, headers_json, store_http_answer};
pub use identity_sample::{IdentitySample, identity_sample};
pub use inspect::{
    AuditFilter, AuditRow, KeyDetails, MirrorQueueStatus, RECENT_ROWS, audit_list, key_details,
    mirror_queue_status,
};
pub use inspect::{
    HandlerFunction, RecentOutcome, TableStatistics, handler_functions, login_roles,
    login_without_schema_usage, recent_outcomes, table_statistics,
};
pub use json_text::{LARGEST_JSON, json_text};
pub use key_contents::KeyContents;
pub use key_list::{KeyRow, KeyWalk, keys};
pub use last_outage::LastOutage;
pub use lease::{BegunStep, RefusedCall, RenewOutcome, StepState};
pub use lease::{
    GrantedLease, LeaseAnswer, LeaseClaim, LeaseCompletion, LeaseFailOutcome, LeaseFailure, LeaseIdRef,
    LeaseTrace, begin_step, checkpoint, complete_lease, complete_leases, fail_lease, is_lease_lost,
    refuse_step, release_lease, renew_leases, step_result, take_leases, transaction_id,
};
pub use lease_client::{ClientClaim, claim_lease, known_lease, renew_lease};
pub use lease_list::{HeldCount, HeldLease, LeaseFilter, LeaseStep, held_counts, held_leases, revoke_lease};
pub use letter_change::{
    KeyUse, LetterDecision, LetterState, PlannedLetter, RequeueDecision, StoredMessage, TenantLetter,
    announce_requeue, begin_requeue, came_back as came_back_letters, count as count_letters, decide_letters,
    finish_requeue, is_requeue_under_way, keys_in_use, lock_free_requeueing as lock_free_requeueing_letters,
    lock_requeueing as lock_requeueing_letters, mark_swept, messages, plan as plan_letters, standings,
};
pub use letter_list::{LetterFilter, LetterGroup, LetterRow, letter_groups, letters};
pub use letter_list::{LetterTrend, letter_trends, open_letters};
pub use letter_quota::{
    EffectiveRetention, Quota, TenantLimits, TenantOverQuota, TenantRetention, TenantUsage, count_stored,
    limit_tenant, over_quota, tenant_usages,
};
pub use lock_holder::{LockHolder, lock_holders};
pub use login::{LoginPrivileges, login_powers, missing_privileges};
pub use maintenance_state::{MaintenanceState, default_partition_has_rows, maintenance_state};
pub use migrate::{MIGRATOR, MigrationState, migration_state};
pub use migrate::{MigrationTry, try_migration};
pub use migration_lock::{BlockedSessions, LockedWork, TableLock, UnclearLock, migration_locks};
pub use migration_plan::{PlannedLock, measure_locked, pending_locks};
pub use mirror_again::{KeyPlace, mirror_again, mirrored_sample};
pub use mirror_queue::{
    MirrorContent, MirrorRecord, RECORD_BYTES, append_mirror, delete as delete_mirrored, take_mirror,
};
pub use observed::{ConflictingKey, ObservedCount, conflicting_keys, observed_counts};
pub use operator_action::{Action, ActionRow, recent_actions, record_action};
pub use ordering_key::collect_ordering_keys;
pub use park::{ParkOutcome, park};
pub use partition::{audit_floor, drop_oldest as drop_partition, make as make_partition};
pub use process::{
    Process, ProcessRow, Readiness, SILENT, beat, delete_processes_before as bury_processes,
    disable_synchronous_commit, forget as forget_processes, leave, processes,
};
pub use refuse::{Refusal, refuse};
pub use rehearsal::{
    EmittedEvent, TableChanges, begin_rehearsal, defer_again, events_since, keep_from_savepoint,
    run_deferred, set_savepoint, table_changes, undo_to_savepoint,
};
pub use reply::{Reply, write_replies};
pub use request_claim::{RequestClaim, claim_request, retake_request};
pub use right::{RightFilter, RightRow, grant_right, revoke_rights, rights};
pub use search_path::{
    LockWait, backdate_session, begin, begin_anew, begin_on_pool, begin_request, begin_request_anew,
    begin_to_claim, enter_handler, leave_request,
};
pub use secret::{
    SecretRow, Secrets, forget_secrets, list_secrets, mirror_keys, rotate_secret, secrets, signing_secrets,
};
pub use seed::{MOST_SEEDS, Seed, SeedConflict, seed_keys};
pub use server::{
    ServerSettings, is_read_only, read_clock, read_only, server_encoding, server_settings, server_version,
    unfit_encoding,
};
#[cfg(feature = "testing")]
pub use session::end_backend_now;
pub use session::{
    Backend, await_standby, cancel_backend, database_status, end_backend, is_at_work, is_standby,
    limit_lock_wait, process, read_by_index, take_time,
};
pub use session::{DatabaseCell, DatabaseClock, Session};
pub use session_factory::{NoSession, SessionFactory};
pub use session_pool::{PoolLimits, PooledSession, SessionOpener, SessionPool};
pub use settings::HostState;
pub use settings::PgSettings;
pub use settle::settle_claim;
pub use stats::{
    ConsumerStats, RelayStats, consumer_stats, prune_stats, record_relay_stats, record_stats, relay_stats,
    roll_up_stats,
};
pub use status_queries::{
    ConsumerKeyCounts, FailingKey, QueueLetters, consumer_key_counts, failing_keys, queue_letters,
};
pub use suspect::{mark, unmark};
pub use tenant::{
    TenantCounts, TenantTable, close_letters, erase_actions, erase_keys, erase_pending_tags, erase_rows,
    erase_silent_processes, erase_trail, has_mirror, hold_rebuilds, tenant_contents, tenant_counts,
    tenant_payloads, tenant_queues,
};
pub use timelines::Timelines;
pub use trail::{
    Position, TrailFilter, first_week_of_trail, oldest_of_trail, rows_of_trail, summarize_trail, trail_page,
};
pub use turn::take_turn;
pub use unknown_keys::unknown_keys;
pub use vacuum::{dead_rows, hidden_sessions, invalid_indexes, old_transactions, replication_slots};
