//! The list of all checks.

use super::check::Check;

/// Returns the check with this id.
#[must_use]
pub fn check(id: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.id == id)
}

const fn at_start(
    id: &'static str,
    title: &'static str,
    reads: &'static str,
    bad: &'static str,
    fix: &'static str,
) -> Check {
    Check { id, title, reads, bad, fix, at_start: true }
}

const fn later(
    id: &'static str,
    title: &'static str,
    reads: &'static str,
    bad: &'static str,
    fix: &'static str,
) -> Check {
    Check { id, title, reads, bad, fix, at_start: false }
}

/// All checks, in display order. Ids are part of the public interface.
pub const CHECKS: &[Check] = &[
    at_start(
        "config",
        "The configuration",
        "the configuration file and the environment",
        "error: a key is unknown, missing or wrong, or two contradict each other",
        "change the key that the finding names; every key stands in the configuration reference",
    ),
    at_start(
        "config.files",
        "Files with secrets are not world-readable",
        "the modes of the files that hold a private key (`tls.key`) or a URL (`url_file`), and of the folders above them",
        "warning: every user of the machine may read one",
        "`chmod o=` the file, or keep it in a folder that others may not enter",
    ),
    at_start(
        "pg.reach",
        "PostgreSQL answers",
        "a connection with the login of `postgres.url`, and the database's epoch; where that names several hosts, one to each",
        "error: no connection, a refused login, a standby; several hosts that take writes; warning: one of several hosts does not answer",
        "fix the network, the server or `postgres.url`; name the primary, or all hosts that may become one",
    ),
    at_start(
        "pg.tls",
        "The connection to PostgreSQL is protected",
        "`sslmode` in the URL, and the handshake with `postgres.tls` where one of them asks for TLS",
        "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`",
        "name the authority in `postgres.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)",
    ),
    at_start(
        "pg.pooler",
        "No pooler shares sessions",
        "the server's processes (`pg_backend_pid`) of two connections that are open at the same time; whether start-up options are in force",
        "error: a pooler in transaction mode, or one that drops start-up options where the login does not have what they say",
        "connect to PostgreSQL directly, or through a pooler in session mode with the settings of the options given to the login (`alter role … \
         set`)",
    ),
    at_start(
        "pg.version",
        "The version of PostgreSQL",
        "`server_version`",
        "error: older than 15",
        "upgrade PostgreSQL",
    ),
    at_start(
        "pg.encoding",
        "The database stores UTF-8",
        "`server_encoding`",
        "error: another one, such as `SQL_ASCII`: most messages then fail",
        "create a database in UTF8 and take over what is in this one with pg_dump",
    ),
    at_start(
        "pg.schema",
        "The migrations",
        "`oncely._sqlx_migrations` beside the program's own list",
        "error: migrations are pending, were applied from other files, or are a newer Oncely's and took away what this program uses; info: the \
         database was migrated by a newer Oncely",
        "run `oncely migrate`; update the programs that are older than the database",
    ),
    at_start(
        "pg.cell",
        "The database is the configured one",
        "`oncely.cell.name` beside `cell.name`",
        "error: another name: a wrong URL would deduplicate in the wrong place",
        "correct `postgres.url` or `cell.name`",
    ),
    at_start(
        "pg.grants",
        "The login has the rights that it needs",
        "memberships of Oncely's roles (`pg_has_role`), privileges on tables (`has_table_privilege`), the functions that give keys where they are needed",
        "error: the login lacks the role of its work, or the role lacks a privilege that its migration gave it",
        "grant the role to the login; if the role itself lacks a privilege, it was revoked: \
         grant it again as the migration `roles` does",
    ),
    later(
        "pg.powers",
        "The login has no other rights",
        "`pg_roles`, ownership of the schema, privileges on `oncely.audit`, memberships of several of Oncely's roles",
        "warning: a superuser, a login that skips row-level security, creates roles or replicates, owns the schema, may change or delete the \
         trail, or is both worker and operator: what a handler is tricked into it may then do",
        "give each process a login of its own with its role and nothing else (Grant rights)",
    ),
    at_start(
        "pg.handler",
        "The handlers",
        "`to_regprocedure`, kind, result, volatility, owner and EXECUTE of each consumer's function",
        "error: missing, a wrong signature, a procedure, no right to call it; warning: not volatile, or SECURITY DEFINER with a superuser as \
         its owner",
        "create the function with the signature that the finding names, grant EXECUTE on it, declare it volatile",
    ),
    later(
        "pg.timeouts",
        "No timeout ends Oncely's sessions",
        "`idle_session_timeout` and `transaction_timeout` as they hold for the login",
        "warning: PostgreSQL ends idle sessions, or transactions sooner than their statements may take",
        "`alter role … set idle_session_timeout = 0`, and the same for `transaction_timeout`",
    ),
    later(
        "pg.durability",
        "A reported commit is durable",
        "`fsync`, `full_page_writes`, `synchronous_commit`, `synchronous_standby_names`, connected standbys and physical slots",
        "error: fsync or synchronous_commit is off; a standby may take over without the latest commits while `precheck = \"trust\"`; \
         commits wait for a standby and none is connected. Warning: a standby may take over without the latest commits; full_page_writes \
         is off; commits wait for less than a standby's disk",
        "turn the settings on; name the standby in `synchronous_standby_names`, or leave `precheck` at \"auto\"",
    ),
    later(
        "pg.xmin",
        "Nothing holds back vacuum",
        "the oldest transactions in `pg_stat_activity` that hold a snapshot or a transaction id, and `pg_prepared_xacts`",
        "warning: one is older than 15 minutes",
        "end it (`pg_terminate_backend`, `rollback prepared`), and find out why it stays open",
    ),
    later(
        "pg.bloat",
        "Autovacuum keeps up",
        "`n_dead_tup` and `n_live_tup` of Oncely's tables, `autovacuum`, tables' `autovacuum_enabled`",
        "warning: more than 50,000 dead rows and more than a fifth of a table are dead; autovacuum is off",
        "turn autovacuum on; look at pg.xmin; `vacuum (verbose)` the table",
    ),
    later(
        "pg.slots",
        "No slot fills the disk",
        "`pg_replication_slots`",
        "warning: an inactive slot keeps more than 1 GiB of the log, or a slot has lost what it needs; info: a slot is inactive",
        "bring its reader back, or `select pg_drop_replication_slot('…')`; set `max_slot_wal_keep_size`",
    ),
    later(
        "pg.indexes",
        "Oncely's indexes are valid",
        "`pg_index` of the schema",
        "warning: an index is invalid: PostgreSQL does not use it",
        "`reindex index concurrently oncely.…`",
    ),
    later(
        "pg.partitions",
        "The trail has partitions ahead",
        "the partitions of `oncely.audit` (`pg_inherits`)",
        "warning: less than two days ahead, or none: rows then go to the default partition",
        "start a relay: it makes them every hour; its log says why it could not, as does `oncely gc run`",
    ),
    later(
        "pg.default_partition",
        "The default partition is empty",
        "`oncely.audit_default`, or its size and PostgreSQL's estimate where the login may not read it",
        "warning: it has rows: their week had no partition",
        "start a relay, or run `oncely gc run`: making the week's partition moves them there",
    ),
    at_start(
        "pg.maintenance",
        "The maintenance runs",
        "`oncely.maintenance`, `oncely.locks`: the last look at the database's clock, the last collection and count",
        "warning: the clock was not checked for three hours; no collection ended within six hours of when one was due; \
         or dead letters were not counted for three hours",
        "start a relay; if the clock is right, `oncely gc run --accept-clock`",
    ),
    later(
        "trail.sealed",
        "The trail is sealed",
        "`oncely.maintenance.seal_mark_at`",
        "warning: not sealed for two days; info: never yet",
        "start a relay; `oncely gc run` says why it does not go on; a transaction that is open for as long keeps it waiting (pg.xmin)",
    ),
    at_start(
        "retention",
        "Retention as configured",
        "`consumers.retention` beside `oncely.consumers`",
        "info: the file says less than the database, which counts",
        "`oncely retention set CONSUMER DURATION`, or lengthen it in the file",
    ),
    at_start(
        "fingerprint",
        "Fingerprint as configured",
        "`consumers.fingerprint` beside `oncely.consumers`",
        "info: it was another one before: for keys of that time the key alone decides",
        "nothing, if the change is intended",
    ),
    later(
        "horizon",
        "No dead letter outlives its key",
        "the oldest waiting dead letter of each consumer beside its `redelivery_horizon` and its retention",
        "warning: it is older than the horizon that was planned for, or than the retention: requeued, it would not be recognised",
        "requeue or discard what waits (`oncely failed groups`); lengthen `redelivery_horizon` and `retention`",
    ),
    later(
        "secrets",
        "Keys are rotated",
        "`oncely.secrets`, without the secrets",
        "info: a key has signed for longer than a year; one whose time is over is still there",
        "`oncely secrets rotate PURPOSE` (Replace keys); garbage collection takes away what is over: `pg.maintenance` says whether a relay does it",
    ),
    later(
        "letters.quota",
        "Every tenant's dead letters are stored",
        "`oncely.letter_usage`: tenants of which open dead letters are not stored, as a relay counted within the last minute",
        "warning: a tenant is over its quota: the messages of its further dead letters are in the dead-letter queue alone",
        "requeue or discard what waits (`oncely failed groups --tenant`), or give it more room (`oncely tenant limit`); bound the dead-letter queue's          disk by a policy",
    ),
    later(
        "letters.unknown",
        "No call has an unknown outcome",
        "`oncely.dead_letters` that wait with the reason `outcome_unknown`",
        "warning: there are some: a step that must not be repeated may have happened, and Oncely can't know",
        "look at the other side by the step's key, then `oncely keys settle`, or `oncely failed requeue --repeat-unknown` (Effects outside PostgreSQL)",
    ),
    later(
        "letters.keys",
        "Encrypted bodies can be read",
        "`oncely.dead_letters.encrypted_by` beside the ids in the file that `encryption.keys` names",
        "warning: bodies of dead letters are encrypted with a key that is not there: they can't be shown here, and are requeued from their queue",
        "add the key to the file (Encrypt what is stored); letters that are requeued or discarded go after `audit.retention`",
    ),
    later(
        "time.skew",
        "The clocks agree",
        "`clock_timestamp()` beside this machine's clock, less half of the round trip",
        "warning: more than a second apart: ages and log lines mislead. What takes effect follows the database's clock alone",
        "run a time service (chrony, systemd-timesyncd) on both machines",
    ),
    at_start(
        "mq.reach",
        "RabbitMQ answers",
        "a connection with user and virtual host of `rabbitmq.url`; where that names several nodes, one to each",
        "error: no connection; user, password or virtual host is refused; warning: one of several nodes does not answer",
        "fix the network, the broker or `rabbitmq.url`",
    ),
    at_start(
        "mq.tls",
        "The connections to RabbitMQ are protected",
        "the scheme of the URL, and the handshake with `rabbitmq.tls` where it asks for TLS",
        "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`",
        "name the authority in `rabbitmq.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)",
    ),
    later(
        "mq.version",
        "The version of RabbitMQ",
        "the HTTP API's overview",
        "info: older than 4.0: its series has no community support any more",
        "plan an upgrade (Tested versions)",
    ),
    at_start(
        "mq.user",
        "The user's permissions",
        "whether it may look at the queues, and an empty message without a delay to `<queue>.retry`, which finds no queue and comes back",
        "error, for a worker: it may not look at a queue or its companions, or not publish copies",
        "`rabbitmqctl set_permissions` with patterns that cover the queue's name and everything that begins with it",
    ),
    later(
        "mq.alarms",
        "The broker takes messages",
        "a message to a queue that does not exist, which the broker returns; `connection.blocked`",
        "error: a memory or disk alarm: nothing that is published is taken, copies and events wait",
        "free memory or disk on the broker (`rabbitmq-diagnostics alarms`)",
    ),
    at_start(
        "mq.queue",
        "The work queues",
        "passive declaration, and a declaration with the same arguments, which changes nothing; for a queue that somebody else declares, \
         its arguments in the HTTP API",
        "error: missing, or otherwise than Oncely would declare it (a stream, not durable, auto-delete, exclusive, with a limit that drops \
         messages)",
        "run `oncely topology apply`; delete an unfit queue when it is empty, or say in `queue_arguments` or `declare = false` that it is so",
    ),
    at_start(
        "mq.dlx",
        "The dead-letter exchanges",
        "passive declaration of `<queue>.dlx`; for a queue that somebody else declares, its dead-letter exchange in the HTTP API",
        "error: missing, or another or none: what the broker gives up would be dropped",
        "run `oncely topology apply`; declare your queue with `x-dead-letter-exchange = <queue>.dlx`",
    ),
    at_start(
        "mq.dlq",
        "The dead-letter queues",
        "passive declaration of `<queue>.dead`, and a declaration with the same arguments",
        "error: missing, or otherwise than Oncely declares it: a TTL or a bound loses dead letters, a delivery limit makes each look count",
        "run `oncely topology apply`; an unfit queue has to be emptied (`oncely failed requeue`) and deleted before",
    ),
    at_start(
        "mq.retry",
        "The retry queues",
        "passive declaration of `<queue>.retry`, `<queue>.return` and each `<queue>.retry.<delay>`",
        "error: missing or unfit: copies that are to come later can't be published",
        "run `oncely topology apply`",
    ),
    at_start(
        "mq.bindings",
        "The exchanges that queues are bound to",
        "passive declaration of the exchanges in `bindings`",
        "error: an exchange is missing: nothing comes from it",
        "declare the exchange; run `oncely topology apply`",
    ),
    later(
        "mq.routes",
        "Bindings are complete",
        "the bindings of a consumer's queues in the HTTP API: `bindings`, and from `<queue>.dlx`, `<queue>.retry` and `<queue>.return` to \
         their queues",
        "error: one is missing: messages don't come, or copies and dead letters find no queue",
        "run `oncely topology apply`",
    ),
    later(
        "mq.policies",
        "No policy drops messages",
        "the effective policies of all of a consumer's queues in the HTTP API",
        "error: a policy gives a work or dead-letter queue a TTL, or lets it drop its head or expire; warning: a bound on its length",
        "`rabbitmqctl list_policies`; exclude these queues from the policy's pattern",
    ),
    later(
        "mq.limits",
        "Delivery limits and timeouts are large enough",
        "`x-delivery-limit` and `x-consumer-timeout` of queues, as arguments and as policies, in the HTTP API",
        "warning: a delivery limit below 100 (each lost connection counts for every message on it); a consumer timeout that the deadline and \
         two minutes of waiting may exceed, or of which lease.max_run is more than half",
        "declare the queue with `x-delivery-limit = 1000` (`oncely topology apply` does); lengthen the consumer timeout, or shorten lease.max_run",
    ),
    later(
        "mq.consumers",
        "Each queue has a subscriber",
        "ready messages and subscriptions of the work queues (passive declaration)",
        "error: messages are ready and there is no subscription",
        "start a worker; `oncely status` shows the running ones",
    ),
    at_start(
        "redis.reach",
        "Redis answers",
        "a connection and `PING`; where `redis.sentinels` are given, what each of them says of the master",
        "error: user or password is refused; warning: no answer (PostgreSQL then decides alone: slower, never wrong), a Sentinel that does \
         not answer or knows no such master, Sentinels that name different ones",
        "fix the network, the server, `redis.url` (with Sentinels its host is the master's name) or `redis.sentinels`",
    ),
    at_start(
        "redis.tls",
        "The connection to Redis is protected",
        "the scheme of the URL, and the handshake with `redis.tls` where it asks for TLS",
        "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`",
        "name the authority in `redis.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)",
    ),
    later(
        "redis.memory",
        "Redis has room",
        "`INFO`: `used_memory`, `maxmemory`, `maxmemory_policy`",
        "warning: nine tenths of `maxmemory` are in use and the policy is `noeviction`: new entries are refused",
        "raise `maxmemory`, shorten `mirror.ttl`, or let Redis evict (`volatile-lru`)",
    ),
    later(
        "redis.role",
        "Redis takes writes",
        "`INFO`: `role`",
        "warning: a replica: the relay can write nothing, every look-up misses",
        "name the primary in `redis.url`",
    ),
    at_start(
        "redis.cluster",
        "Redis is one node",
        "`INFO`: `cluster_enabled`",
        "error: a node of a cluster: it redirects what belongs to others, so that look-ups count as misses and entries are never written",
        "use a Redis without cluster mode",
    ),
    later(
        "redis.latency",
        "Redis answers within the budget",
        "the median of five `PING`s beside `mirror.budget`",
        "warning: slower: the mirror is bypassed",
        "lengthen `mirror.budget`, or bring Redis nearer",
    ),
    later(
        "live.relay",
        "A relay is running",
        "heartbeats of relays in `oncely.processes`",
        "warning: none: no event is published, nothing is mirrored or collected",
        "start a relay",
    ),
    later(
        "live.workers",
        "Each consumer has a worker",
        "heartbeats of workers, by the consumers that they name",
        "warning: none lives that names the consumer: its messages wait; info: a worker has a consumer that this file does not name",
        "start a worker with this file; remove the consumer where it is gone for good",
    ),
    later(
        "live.processes",
        "No process is silent or unready",
        "`last_seen_at`, `state` and `reason` of heartbeats",
        "warning: silent for 12 seconds (it died, hangs, or can't reach PostgreSQL), or unready: why",
        "look at the process and its log; a dead one's row goes after an hour",
    ),
    later(
        "live.versions",
        "All processes are of one version",
        "`version` of heartbeats, beside this program's",
        "info: several versions: a rolling upgrade, or a forgotten process",
        "finish the upgrade",
    ),
    later(
        "live.config",
        "All processes have one configuration",
        "`config_digest` of heartbeats, by kind",
        "warning: workers, or relays, were started with different configurations (gateways may differ: each has its service)",
        "restart those that have the old one",
    ),
    later(
        "live.stalled",
        "No consumer is stalled",
        "heartbeats of workers: since when and by which SQLSTATE no message succeeds",
        "error: a consumer is stalled by its environment",
        "`oncely status` names the message and the error; it continues by itself when that is fixed",
    ),
    later(
        "live.contended",
        "No consumer's transactions collide",
        "heartbeats of workers: since when batches of a consumer have had to give way to each other",
        "warning: transactions of a consumer collide over rows that many messages update; its batches run one at a time, over all processes",
        "say what a message locks (`consumers.lock_order`), lock rows in one order in the handler, or leave it: no attempt is spent (the book: Hot rows)",
    ),
    later(
        "live.leases",
        "Expired leases were taken over",
        "keys that runs hold (`oncely leases list`), beside the consumers of the processes that were seen within the last half minute",
        "warning: a lease ended more than ten minutes ago, nobody has taken the key over, and no living worker has its consumer; info: where one has",
        "start a worker of the consumer; where a client of your own holds keys (`oncely.claim_lease`), see that its messages come back",
    ),
    later(
        "live.paused",
        "No consumer was left paused",
        "`oncely.controls`",
        "info: paused by an operator; warning: for more than a day",
        "resume it (`oncely consumers resume`), or ask who paused it",
    ),
    later(
        "data.identity",
        "Identities are plausible",
        "up to 10,000 decisions of the last hour in the trail, and the counters in `oncely.stats`; keys are counted, never shown",
        "warning: a twentieth came without a valid tenant or key; half of the keys read as times (two messages of one moment would be one); \
         a twentieth of the keys came with another payload; two fifths of the deliveries were duplicates",
        "have the publisher set a key that is the same for every copy of a message and for no other message (Choose tenant, key and retention)",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_and_their_places_in_the_book_are_their_own() {
        let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
        let pages: BTreeSet<String> = CHECKS.iter().map(Check::page).collect();
        assert_eq!((ids.len(), pages.len()), (CHECKS.len(), CHECKS.len()));
        for check in CHECKS {
            let is_word = |c: char| c.is_ascii_lowercase() || c == '_' || c == '.';
            assert!(check.id.chars().all(is_word) && check.id.matches('.').count() <= 1, "{}", check.id);
            for text in [check.title, check.reads, check.bad, check.fix] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{}: {text}", check.id);
            }
        }
    }
}
