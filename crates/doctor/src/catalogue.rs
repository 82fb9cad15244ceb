//! The list of all checks.

use super::check::Check;

/// Returns the check with this id; `None` if there is no such check.
#[must_use]
pub fn find_check(id: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.id == id)
}

/// `oncely check` runs it.
const AT_START: bool = true;
/// Only the doctor runs it.
const DOCTOR_ONLY: bool = false;

/// Makes the list: of each check, when it runs, its id, title, data, bad results and remedy.
macro_rules! checks {
    ($($when:ident $id:literal $title:literal reads $reads:literal bad $bad:literal fix $fix:literal;)*) => {
        /// All checks, in display order. Ids are part of the public interface.
        pub const CHECKS: &[Check] = &[
            $(Check { id: $id, title: $title, reads: $reads, bad: $bad, fix: $fix, at_start: $when },)*
        ];
    };
}

checks! {
    AT_START "config" "The configuration"
        reads "the configuration file and the environment"
        bad "error: a key is unknown, missing or wrong, or two contradict each other"
        fix "change the key that the finding names; every key stands in the configuration reference";
    AT_START "config.files" "Files with secrets are not world-readable"
        reads "the modes of the files that hold a private key (`tls.key`) or a URL (`url_file`), and of the folders above them"
        bad "warning: every user of the machine may read one"
        fix "`chmod o=` the file, or keep it in a folder that others may not enter";
    AT_START "pg.reach" "PostgreSQL answers"
        reads "a connection with the login of `postgres.url`, and the database's epoch; where that names several hosts, one to each"
        bad "error: no connection, a refused login, a standby; several hosts that take writes; warning: one of several hosts does not answer"
        fix "fix the network, the server or `postgres.url`; name the primary, or all hosts that may become one";
    AT_START "pg.tls" "The connection to PostgreSQL is protected"
        reads "`sslmode` in the URL, and the handshake with `postgres.tls` where one of them asks for TLS"
        bad "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`"
        fix "name the authority in `postgres.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)";
    AT_START "pg.pooler" "No pooler shares sessions"
        reads "the server's processes (`pg_backend_pid`) of two connections that are open at the same time; whether start-up options are in force"
        bad "error: a pooler in transaction mode, or one that drops start-up options where the login does not have what they say"
        fix "connect to PostgreSQL directly, or through a pooler in session mode with the settings of the options given to the login (`alter role … \
             set`)";
    AT_START "pg.version" "The version of PostgreSQL"
        reads "`server_version`"
        bad "error: older than 15"
        fix "upgrade PostgreSQL";
    AT_START "pg.encoding" "The database stores UTF-8"
        reads "`server_encoding`"
        bad "error: another one, such as `SQL_ASCII`: most messages then fail"
        fix "create a database in UTF8 and take over what is in this one with pg_dump";
    AT_START "pg.schema" "The migrations"
        reads "`oncely._sqlx_migrations` beside the program's own list"
        bad "error: migrations are pending, were applied from other files, or are a newer Oncely's and took away what this program uses; info: the \
             database was migrated by a newer Oncely"
        fix "run `oncely migrate`; update the programs that are older than the database";
    AT_START "pg.cell" "The database is the configured one"
        reads "`oncely.cell.name` beside `cell.name`"
        bad "error: another name: a wrong URL would deduplicate in the wrong place"
        fix "correct `postgres.url` or `cell.name`";
    AT_START "pg.engine" "The engine behind the tables"
        reads "`oncely.tenant_nodes` (a worker), `oncely.units` (a relay), beside `postgres.engine`"
        bad "error: `postgres.engine` is \"citus\" and the tables are on one server; it is not, the tables are spread over nodes, and a consumer \
             trusts the mirror; a relay's server keeps no part of the tables; info: messages are forwarded"
        fix "set `postgres.engine` as the tables are; connect a relay to a node that keeps shards";
    AT_START "pg.grants" "The login has the rights that it needs"
        reads "memberships of Oncely's roles (`pg_has_role`), privileges on tables (`has_table_privilege`), the functions that give keys where they are needed"
        bad "error: the login lacks the role of its work, or the role lacks a privilege that its migration gave it"
        fix "grant the role to the login; if the role itself lacks a privilege, it was revoked: \
         grant it again as the migration `roles` does";
    DOCTOR_ONLY "pg.powers" "The login has no other rights"
        reads "`pg_roles`, ownership of the schema, privileges on `oncely.audit`, memberships of several of Oncely's roles"
        bad "warning: a superuser, a login that skips row-level security, creates roles or replicates, owns the schema, may change or delete the \
             trail, or is both worker and operator: what a handler is tricked into it may then do"
        fix "give each process a login of its own with its role and nothing else (Grant rights)";
    AT_START "pg.handler" "The handlers"
        reads "`to_regprocedure`, kind, result, volatility, owner and EXECUTE of each consumer's function"
        bad "error: missing, a wrong signature, a procedure, no right to call it; warning: not volatile, or SECURITY DEFINER with a superuser as \
             its owner"
        fix "create the function with the signature that the finding names, grant EXECUTE on it, declare it volatile";
    DOCTOR_ONLY "pg.timeouts" "No timeout ends Oncely's sessions"
        reads "`idle_session_timeout` and `transaction_timeout` as they hold for the login"
        bad "warning: PostgreSQL ends idle sessions, or transactions sooner than their statements may take"
        fix "`alter role … set idle_session_timeout = 0`, and the same for `transaction_timeout`";
    DOCTOR_ONLY "pg.durability" "A reported commit is durable"
        reads "`fsync`, `full_page_writes`, `synchronous_commit`, `synchronous_standby_names`, connected standbys and physical slots"
        bad "error: fsync or synchronous_commit is off; a standby may take over without the latest commits while `precheck = \"trust\"`; \
             commits wait for a standby and none is connected. Warning: a standby may take over without the latest commits; full_page_writes \
             is off; commits wait for less than a standby's disk"
        fix "turn the settings on; name the standby in `synchronous_standby_names`, or leave `precheck` at \"auto\"";
    DOCTOR_ONLY "pg.xmin" "Nothing holds back vacuum"
        reads "the oldest transactions in `pg_stat_activity` that hold a snapshot or a transaction id, and `pg_prepared_xacts`"
        bad "warning: one is older than 15 minutes"
        fix "end it (`pg_terminate_backend`, `rollback prepared`), and find out why it stays open";
    DOCTOR_ONLY "pg.bloat" "Autovacuum keeps up"
        reads "`n_dead_tup` and `n_live_tup` of Oncely's tables, `autovacuum`, tables' `autovacuum_enabled`"
        bad "warning: more than 50,000 dead rows and more than a fifth of a table are dead; autovacuum is off"
        fix "turn autovacuum on; look at pg.xmin; `vacuum (verbose)` the table";
    DOCTOR_ONLY "pg.wal" "Checkpoints come in time"
        reads "`wal_compression`, `max_wal_size`, `checkpoint_timeout`, `pg_stat_wal`, and `pg_stat_checkpointer` (`pg_stat_bgwriter` before 17)"
        bad "warning: ten or more checkpoints were requested, and fewer were in time: each makes PostgreSQL write every page that changes next \
             into its log whole; info: at least half of more than 1 GiB of log may be such pages, and `wal_compression` is off"
        fix "raise `max_wal_size` to what the finding says (`alter system set`, and reload), and begin to count anew as it says; `wal_compression = lz4`, or `pglz`";
    DOCTOR_ONLY "pg.slots" "No slot fills the disk"
        reads "`pg_replication_slots`"
        bad "warning: an inactive slot keeps more than 1 GiB of the log, or a slot has lost what it needs; info: a slot is inactive"
        fix "bring its reader back, or `select pg_drop_replication_slot('…')`; set `max_slot_wal_keep_size`";
    DOCTOR_ONLY "pg.indexes" "Oncely's indexes are valid"
        reads "`pg_index` of the schema"
        bad "warning: an index is invalid: PostgreSQL does not use it"
        fix "`reindex index concurrently oncely.…`";
    DOCTOR_ONLY "pg.partitions" "The trail has partitions ahead"
        reads "the partitions of `oncely.audit` (`pg_inherits`)"
        bad "warning: less than two days ahead, or none: rows then go to the default partition"
        fix "start a relay: it makes them every hour; its log says why it could not, as does `oncely gc run`";
    DOCTOR_ONLY "pg.default_partition" "The default partition is empty"
        reads "`oncely.audit_default`, or its size and PostgreSQL's estimate where the login may not read it"
        bad "warning: it has rows: their week had no partition"
        fix "start a relay, or run `oncely gc run`: making the week's partition moves them there";
    AT_START "pg.maintenance" "The maintenance runs"
        reads "`oncely.maintenance`, `oncely.locks`: the last look at the database's clock, the last collection and count"
        bad "warning: the clock was not checked for three hours; no collection ended within six hours of when one was due; \
         or dead letters were not counted for three hours"
        fix "start a relay; if the clock is right, `oncely gc run --accept-clock`";
    DOCTOR_ONLY "trail.sealed" "The trail is sealed"
        reads "`oncely.maintenance.seal_mark_at`"
        bad "warning: not sealed for two days; info: never yet"
        fix "start a relay; `oncely gc run` says why it does not go on; a transaction that is open for as long keeps it waiting (pg.xmin)";
    AT_START "retention" "Retention as configured"
        reads "`consumers.retention` beside `oncely.consumers`"
        bad "info: the file says less than the database, which counts"
        fix "`oncely retention set CONSUMER DURATION`, or lengthen it in the file";
    AT_START "fingerprint" "Fingerprint as configured"
        reads "`consumers.fingerprint` beside `oncely.consumers`"
        bad "info: it was another one before: for keys of that time the key alone decides"
        fix "nothing, if the change is intended";
    DOCTOR_ONLY "horizon" "No dead letter outlives its key"
        reads "the oldest waiting dead letter of each consumer beside its `redelivery_horizon` and its retention"
        bad "warning: it is older than the horizon that was planned for, or than the retention: requeued, it would not be recognised"
        fix "requeue or discard what waits (`oncely failed groups`); lengthen `redelivery_horizon` and `retention`";
    DOCTOR_ONLY "secrets" "Keys are rotated"
        reads "`oncely.secrets`, without the secrets"
        bad "info: a key has signed for longer than a year; one whose time is over is still there"
        fix "`oncely secrets rotate PURPOSE` (Replace keys); garbage collection takes away what is over: `pg.maintenance` says whether a relay does it";
    DOCTOR_ONLY "letters.quota" "Every tenant's dead letters are stored"
        reads "`oncely.letter_usage`: tenants of which open dead letters are not stored, as a relay counted within the last minute"
        bad "warning: a tenant is over its quota: the messages of its further dead letters are in the dead-letter queue alone"
        fix "requeue or discard what waits (`oncely failed groups --tenant`), or give it more room (`oncely tenant limit`); bound the dead-letter queue's          disk by a policy";
    DOCTOR_ONLY "letters.unknown" "No call has an unknown outcome"
        reads "`oncely.dead_letters` that wait with the reason `outcome_unknown`"
        bad "warning: there are some: a step that must not be repeated may have happened, and Oncely can't know"
        fix "look at the other side by the step's key, then `oncely keys settle`, or `oncely failed requeue --repeat-unknown` (Effects outside PostgreSQL)";
    DOCTOR_ONLY "letters.keys" "Encrypted bodies can be read"
        reads "`oncely.dead_letters.encrypted_by` beside the ids in the file that `encryption.keys` names"
        bad "warning: bodies of dead letters are encrypted with a key that is not there: they can't be shown here, and are requeued from their queue"
        fix "add the key to the file (Encrypt what is stored); letters that are requeued or discarded go after `audit.retention`";
    DOCTOR_ONLY "time.skew" "The clocks agree"
        reads "`clock_timestamp()` beside this machine's clock, less half of the round trip"
        bad "warning: more than a second apart: ages and log lines mislead. What takes effect follows the database's clock alone"
        fix "run a time service (chrony, systemd-timesyncd) on both machines";
    AT_START "mq.reach" "RabbitMQ answers"
        reads "a connection with user and virtual host of `rabbitmq.url`; where that names several nodes, one to each"
        bad "error: no connection; user, password or virtual host is refused; warning: one of several nodes does not answer"
        fix "fix the network, the broker or `rabbitmq.url`";
    AT_START "mq.tls" "The connections to RabbitMQ are protected"
        reads "the scheme of the URL, and the handshake with `rabbitmq.tls` where it asks for TLS"
        bad "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`"
        fix "name the authority in `rabbitmq.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)";
    DOCTOR_ONLY "mq.version" "The version of RabbitMQ"
        reads "the HTTP API's overview"
        bad "info: older than 4.0: its series has no community support any more"
        fix "plan an upgrade (Tested versions)";
    AT_START "mq.user" "The user's permissions"
        reads "whether it may look at the queues, and an empty message without a delay to `<queue>.retry`, which finds no queue and comes back"
        bad "error, for a worker: it may not look at a queue or its companions, or not publish copies"
        fix "`rabbitmqctl set_permissions` with patterns that cover the queue's name and everything that begins with it";
    DOCTOR_ONLY "mq.alarms" "The broker takes messages"
        reads "a message to a queue that does not exist, which the broker returns; `connection.blocked`"
        bad "error: a memory or disk alarm: nothing that is published is taken, copies and events wait"
        fix "free memory or disk on the broker (`rabbitmq-diagnostics alarms`)";
    AT_START "mq.queue" "The work queues"
        reads "passive declaration, and a declaration with the same arguments, which changes nothing; for a queue that another program declares, \
               its arguments in the HTTP API"
        bad "error: missing, or otherwise than Oncely would declare it (a stream, not durable, auto-delete, exclusive, with a limit that drops \
             messages)"
        fix "run `oncely topology apply`; delete an unfit queue when it is empty, or say in `queue_arguments` or `declare = false` that it is so";
    AT_START "mq.dlx" "The dead-letter exchanges"
        reads "passive declaration of `<queue>.dlx`; for a queue that another program declares, its dead-letter exchange in the HTTP API"
        bad "error: missing, or another or none: what the broker gives up would be dropped"
        fix "run `oncely topology apply`; declare your queue with `x-dead-letter-exchange = <queue>.dlx`";
    AT_START "mq.dlq" "The dead-letter queues"
        reads "passive declaration of `<queue>.dead`, and a declaration with the same arguments"
        bad "error: missing, or otherwise than Oncely declares it: a TTL or a bound loses dead letters, a delivery limit makes each look count"
        fix "run `oncely topology apply`; an unfit queue has to be emptied (`oncely failed requeue`) and deleted before";
    AT_START "mq.retry" "The retry queues"
        reads "passive declaration of `<queue>.retry`, `<queue>.return` and each `<queue>.retry.<delay>`"
        bad "error: missing or unfit: copies that are to come later can't be published"
        fix "run `oncely topology apply`";
    AT_START "mq.bindings" "The exchanges that queues are bound to"
        reads "passive declaration of the exchanges in `bindings`"
        bad "error: an exchange is missing: nothing comes from it"
        fix "declare the exchange; run `oncely topology apply`";
    DOCTOR_ONLY "mq.routes" "Bindings are complete"
        reads "the bindings of a consumer's queues in the HTTP API: `bindings`, and from `<queue>.dlx`, `<queue>.retry` and `<queue>.return` to \
               their queues"
        bad "error: one is missing: messages don't come, or copies and dead letters find no queue"
        fix "run `oncely topology apply`";
    DOCTOR_ONLY "mq.policies" "No policy drops messages"
        reads "the effective policies of all of a consumer's queues in the HTTP API"
        bad "error: a policy gives a work or dead-letter queue a TTL, or lets it drop its head or expire; warning: a bound on its length"
        fix "`rabbitmqctl list_policies`; exclude these queues from the policy's pattern";
    DOCTOR_ONLY "mq.limits" "Delivery limits and timeouts are large enough"
        reads "`x-delivery-limit` and `x-consumer-timeout` of queues, as arguments and as policies, in the HTTP API"
        bad "warning: a delivery limit below 100 (each lost connection counts for every message on it); a consumer timeout that the deadline and \
             two minutes of waiting may exceed, or into which lease.max_run does not fit twice with two minutes"
        fix "declare the queue with `x-delivery-limit = 1000` (`oncely topology apply` does); lengthen the consumer timeout, or shorten lease.max_run";
    DOCTOR_ONLY "mq.consumers" "Each queue has a subscriber"
        reads "ready messages and subscriptions of the work queues (passive declaration)"
        bad "error: messages are ready and there is no subscription"
        fix "start a worker; `oncely status` shows the running ones";
    AT_START "redis.reach" "Redis answers"
        reads "a connection and `PING`; where `redis.sentinels` are given, what each of them says of the master"
        bad "error: user or password is refused; warning: no answer (PostgreSQL then decides alone: slower, never wrong), a Sentinel that does \
             not answer or knows no such master, Sentinels that name different ones"
        fix "fix the network, the server, `redis.url` (with Sentinels its host is the master's name) or `redis.sentinels`";
    AT_START "redis.tls" "The connection to Redis is protected"
        reads "the scheme of the URL, and the handshake with `redis.tls` where it asks for TLS"
        bad "error: no trusted authority issued the server's certificate, its certificate is for other names \
         or not valid now, it demands a certificate or refuses ours, \
         it speaks no TLS, a file can't be used (a finding's `kind` says which); info: `allow_plaintext`"
        fix "name the authority in `redis.tls.ca`, call the server by a name that is in its certificate, renew what has expired (TLS)";
    DOCTOR_ONLY "redis.memory" "Redis has room"
        reads "`INFO`: `used_memory`, `maxmemory`, `maxmemory_policy`"
        bad "warning: nine tenths of `maxmemory` are in use and the policy is `noeviction`: new entries are refused"
        fix "raise `maxmemory`, shorten `mirror.ttl`, or let Redis evict (`volatile-lru`)";
    DOCTOR_ONLY "redis.role" "Redis takes writes"
        reads "`INFO`: `role`"
        bad "warning: a replica: the relay can write nothing, every look-up misses"
        fix "name the primary in `redis.url`";
    AT_START "redis.cluster" "Redis is a cluster only if the configuration says so"
        reads "`INFO`: `cluster_enabled`"
        bad "error: a node of a cluster without `redis.cluster`: it redirects what belongs to others, so that look-ups count as misses and \
             entries are never written; or `redis.cluster` for a server without cluster mode"
        fix "set `redis.cluster` to what the server is";
    DOCTOR_ONLY "redis.latency" "Redis answers within the budget"
        reads "the median of five `PING`s beside `mirror.budget`"
        bad "warning: slower: the mirror is bypassed"
        fix "lengthen `mirror.budget`, or bring Redis nearer";
    DOCTOR_ONLY "citus.tables" "A Citus cluster: a tenant's rows lie together"
        reads "`pg_dist_partition` and `pg_dist_shard`, where the extension citus is"
        bad "error: a table of Oncely is not spread; warning: a distributed table with a tenant is not colocated with the keys"
        fix "run `oncely migrate --citus`; distribute the table with `colocate_with => 'oncely.idempotency_keys'`";
    DOCTOR_ONLY "citus.policies" "A Citus cluster: shards have the policies of their tables"
        reads "`pg_policy` of the shards at this node"
        bad "error: a shard lacks a policy of its table"
        fix "drop and create the policy at the coordinator, which makes it on all shards";
    DOCTOR_ONLY "citus.prepared" "A Citus cluster: transactions of two phases end"
        reads "`pg_prepared_xacts` of this node"
        bad "warning: one was prepared over a minute ago: it holds its keys"
        fix "`select recover_prepared_transactions()`; find the handler that writes rows of other tenants";
    DOCTOR_ONLY "live.relay" "A relay is running"
        reads "heartbeats of relays in `oncely.processes`"
        bad "warning: none: no event is published, nothing is mirrored or collected"
        fix "start a relay";
    DOCTOR_ONLY "live.workers" "Each consumer has a worker"
        reads "heartbeats of workers, by the consumers that they name"
        bad "warning: none lives that names the consumer: its messages wait; info: a worker has a consumer that this file does not name"
        fix "start a worker with this file; remove the consumer where it is gone for good";
    DOCTOR_ONLY "live.routes" "Messages go to the node that keeps their tenant"
        reads "heartbeats of workers with `postgres.engine = \"citus\"`: deliveries sent to the owner, and forwarded, since the start of each"
        bad "info: over a tenth of a thousand or more are forwarded"
        fix "see whether the worker reaches all nodes by the addresses in `pg_dist_node` (`postgres.nodes`), and whether its tenants are known \
             before the message is read (`consumers.tenant`)";
    DOCTOR_ONLY "live.processes" "No process is silent or unready"
        reads "`last_seen_at`, `state` and `reason` of heartbeats"
        bad "warning: silent for 12 seconds (it died, hangs, or can't reach PostgreSQL), or unready: why"
        fix "look at the process and its log; a dead one's row goes after an hour";
    DOCTOR_ONLY "live.versions" "All processes are of one version"
        reads "`version` of heartbeats, beside this program's"
        bad "info: several versions: a rolling upgrade, or a forgotten process"
        fix "finish the upgrade";
    DOCTOR_ONLY "live.config" "All processes have one configuration"
        reads "`config_digest` of heartbeats, by kind"
        bad "warning: workers, or relays, were started with different configurations (gateways may differ: each has its service)"
        fix "restart those that have the old one";
    DOCTOR_ONLY "live.stalled" "No consumer is stalled"
        reads "heartbeats of workers: since when and by which SQLSTATE no message succeeds"
        bad "error: a consumer is stalled by its environment"
        fix "`oncely status` names the message and the error; it continues by itself when that is fixed";
    DOCTOR_ONLY "live.contended" "No consumer's transactions collide"
        reads "heartbeats of workers: since when batches of a consumer have had to give way to each other"
        bad "warning: transactions of a consumer collide over rows that many messages update; its batches run one at a time, over all processes"
        fix "say what a message locks (`consumers.lock_order`), lock rows in one order in the handler, or leave it: no attempt is spent (the book: Hot rows)";
    DOCTOR_ONLY "live.leases" "Expired leases were taken over"
        reads "keys that runs hold (`oncely leases list`), beside the consumers of the processes that were seen within the last half minute"
        bad "warning: a lease ended more than ten minutes ago, the key was not taken over, and no living worker has its consumer; info: where one has"
        fix "start a worker of the consumer; where a client of your own holds keys (`oncely.claim_lease`), see that its messages come back";
    DOCTOR_ONLY "live.paused" "No consumer was left paused"
        reads "`oncely.controls`"
        bad "info: paused by an operator; warning: for more than a day"
        fix "resume it (`oncely consumers resume`), or ask who paused it";
    DOCTOR_ONLY "data.identity" "Identities are plausible"
        reads "up to 10,000 decisions of the last hour in the trail, and the counters in `oncely.stats`; keys are counted, never shown"
        bad "warning: a twentieth came without a valid tenant or key; half of the keys read as times (two messages of one moment would be one); \
             a twentieth of the keys came with another payload; two fifths of the deliveries were duplicates"
        fix "have the publisher set a key that is the same for every copy of a message and for no other message (Choose tenant, key and retention)";
}

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
