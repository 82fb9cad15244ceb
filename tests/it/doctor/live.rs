//! What the doctor says of processes and consumers by their heartbeats, and of the identities of the last hour.

use oncely_doctor::{Limits, Verdict};

use super::{Case, case, go_through};
use crate::support::World;

/// A relay and a worker of the consumer, as they would write it; they stay alive for an hour.
const ALIVE: &str = "
    insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at, last_seen_at, consumers)
    select gen_random_uuid(), kind, kind, '0.1.0', 'host', 1, 'd1', 'ready', 'l', now(), now() + interval '1 hour', beats::jsonb
    from (values ('relay', '[]'), ('worker', '[{\"consumer\": \"payments\"}]')) as p (kind, beats)";

const LIVE: &[Case] = &[
    case(
        "update oncely.processes set kind = 'worker' where kind = 'relay'",
        "live.relay", Verdict::Warning, "no event is published",
        "update oncely.processes set kind = 'relay' where name = 'relay'",
    ),
    case(
        "update oncely.processes set consumers = '[{\"consumer\": \"ledger\"}]' where kind = 'worker'",
        "live.workers", Verdict::Warning, "consumers.payments: no worker of it is running",
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\"}]' where kind = 'worker'",
    ),
    case(
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\"}, {\"consumer\": \"ledger\"}]' where kind = 'worker'",
        "live.workers", Verdict::Info, "the consumer ledger, which this configuration does not name",
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\"}]' where kind = 'worker'",
    ),
    case(
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\", \"routes\": [200, 900]}]' where kind = 'worker'",
        "live.routes", Verdict::Info, "forwards 200 of 1100 messages of payments",
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\", \"routes\": [100, 900]}]' where kind = 'worker'",
    ),
    case(
        "update oncely.processes set last_seen_at = now() - interval '5 minutes' where kind = 'worker'",
        "live.processes", Verdict::Warning, "worker worker: is silent for 5m",
        "update oncely.processes set last_seen_at = now() + interval '1 hour' where kind = 'worker'",
    ),
    case(
        "update oncely.processes set state = 'unready', reason = 'no subscription' where kind = 'worker'",
        "live.processes", Verdict::Warning, "worker worker: is not ready: no subscription",
        "update oncely.processes set state = 'ready', reason = null where kind = 'worker'",
    ),
    case(
        "update oncely.processes set version = '0.0.9' where kind = 'worker'",
        "live.versions", Verdict::Info, "of several versions: 0.0.9, 0.1.0",
        "update oncely.processes set version = '0.1.0' where kind = 'worker'",
    ),
    case(
        "insert into oncely.processes (id, kind, name, version, host, pid, config_digest, state, login, started_at, last_seen_at, consumers)
         values (gen_random_uuid(), 'worker', 'second', '0.1.0', 'host', 2, 'd2', 'ready', 'l', now(), now() + interval '1 hour', '[]')",
        "live.config", Verdict::Warning, "second has d2",
        "delete from oncely.processes where name = 'second'",
    ),
    case(
        "update oncely.processes set consumers = jsonb_build_array(jsonb_build_object('consumer', 'payments', 'stalled',
             jsonb_build_object('since', now() - interval '10 minutes', 'code', '42P01', 'text', 'S3CR3T', 'key', 'S3CR3T')))
         where kind = 'worker'",
        "live.stalled", Verdict::Error, "payments: has been stalled for 10m",
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\"}]' where kind = 'worker'",
    ),
    case(
        "update oncely.processes set consumers = jsonb_build_array(jsonb_build_object('consumer', 'payments', 'contended',
             jsonb_build_object('since', now() - interval '10 minutes')))
         where kind = 'worker'",
        "live.contended", Verdict::Warning, "payments: has had transactions that collide for 10m",
        "update oncely.processes set consumers = '[{\"consumer\": \"payments\"}]' where kind = 'worker'",
    ),
    case(
        "insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, owner, fencing_token, not_before, run_ends_at)
         values ('acme', 'ledger', 'S3CR3T-KEY', 'IN_PROGRESS', 0, now(), 'S3CR3T', 1, now() - interval '11 minutes', now())",
        "live.leases", Verdict::Warning, "ledger: 1 key is held by an expired lease, the first expired 11m",
        "update oncely.idempotency_keys set not_before = now() - interval '9 minutes'",
    ),
    case(
        "update oncely.idempotency_keys set consumer = 'payments', not_before = now() - interval '1 hour'",
        "live.leases", Verdict::Info, "have not come back to its workers yet",
        "delete from oncely.idempotency_keys",
    ),
    case(
        "select oncely.pause_consumer('payments', null, 'the bank is closed', 'bo')",
        "live.paused", Verdict::Info, "until it is resumed: the bank is closed",
        "",
    ),
    case(
        "update oncely.controls set paused_at = now() - interval '2 days'",
        "live.paused", Verdict::Warning, "payments: is paused for 2days",
        "select oncely.resume_consumer('payments', null, 'bo')",
    ),
];

#[tokio::test]
async fn processes_and_consumers_are_judged_by_their_heartbeats() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7d").await;
    super::run(&mut world, ALIVE).await;
    go_through(&mut world, LIVE, Limits::default()).await;
}

const IDENTITIES: &[Case] = &[
    case(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, worker)
         select 'acme', now(), 1, 'payments', case when n < 3 then '' else 'order-' || n end, 'q', 'dead_lettered', 'key_missing', 'w'
         from generate_series(1, 40) as n",
        "data.identity", Verdict::Warning, "5 % of the last hour's messages came without a valid tenant or key",
        "delete from oncely.audit",
    ),
    case(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now(), 1, 'payments', (extract(epoch from now()) * 1000)::bigint::text, 'q', 'completed', 'w'
         from generate_series(1, 40) as n",
        "data.identity", Verdict::Warning, "100 % of the last hour's keys read as times",
        "delete from oncely.audit",
    ),
    case(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, worker)
         select 'acme', now(), 1, 'payments', to_char(now(), 'YYYY-MM-DD\"T\"HH24:MI:SS'), 'q', 'completed', 'w'
         from generate_series(1, 40) as n",
        "data.identity", Verdict::Warning, "100 % of the last hour's keys read as times",
        "delete from oncely.audit",
    ),
    // Numbers of ten digits that are no times.
    case(
        "insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, worker)
         select 'acme', now(), 1, 'payments', (2500000000 + n)::text, 'q', 'dead_lettered', case when n < 5 then 'key_conflict' end, 'w'
         from generate_series(1, 40) as n",
        "data.identity", Verdict::Warning, "10 % of the last hour's decisions were refused because the key came with another payload",
        "update oncely.audit set reason = null",
    ),
    case(
        "insert into oncely.stats (at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered,
             fallbacks, outages, durations)
         values (now(), 'payments', gen_random_uuid(), 100, 60, 0, 40, 0, 0, 0, 0, 0, array_fill(0, array[20]))",
        "data.identity", Verdict::Warning, "40 % of its deliveries of the last hour were duplicates",
        "delete from oncely.stats",
    ),
];

#[tokio::test]
async fn identities_that_do_not_identify_are_told_and_no_key_is_shown() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    go_through(&mut world, IDENTITIES, Limits { decisions: 20, ..Limits::default() }).await;
    let scope = super::only("data.identity", Limits::default());
    let report = oncely_doctor::examine(&world.config(), &oncely::config::Problems::default(), &scope).await;
    assert!(format!("{report:?}").contains("of 40 decisions"), "{report:?}");
    assert!(!format!("{report:?}").contains("25000000"), "{report:?}");
}
