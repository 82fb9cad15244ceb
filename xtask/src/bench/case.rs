//! The cases, and what each is to reach.

/// What a ratio is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Only told.
    None,
}

impl Target {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::None => true,
        }
    }

    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Self::AtLeast(value) | Self::AtMost(value) => Some(value),
            Self::None => None,
        }
    }
}

/// One line of the results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// What the ratio says.
    pub(crate) what: &'static str,
    pub(crate) target: Target,
}

use Target::{AtLeast, AtMost};

const fn case(name: &'static str, target: Target, what: &'static str) -> Case {
    Case { name, what, target }
}

/// In the order in which they are reported.
pub(crate) const CASES: [Case; 74] = [
    case(
        "e2e_classic_full",
        AtLeast(12.0),
        "rate with batch SQL function, relay, pre-check, audit / naive; classic queue",
    ),
    case("e2e_quorum_full", AtLeast(18.0), "the same / naive, both on a quorum queue"),
    case(
        "e2e_per_message_sql",
        AtLeast(10.0),
        "the same with a SQL function per message / naive; classic queue",
    ),
    case("e2e_rust_handler", AtLeast(4.0), "the same with a handler in Rust, one INSERT per message / naive"),
    case("poison_1pct", AtLeast(0.75), "rate with 1 % of the messages rejected by the handler / with none"),
    case(
        "env_1pct",
        AtLeast(0.5),
        "rate with 1 % of the messages failing with 42P01 (a missing table) / with none",
    ),
    case(
        "cpu_per_message",
        AtLeast(12.0),
        "CPU time of all processes a message, naive / ours; of e2e_classic_full",
    ),
    case(
        "pg_cpu_vs_raw_batch",
        AtMost(1.25),
        "PostgreSQL's CPU time a message, worker alone with a Rust handler, one INSERT per batch / bare batched inserts of its rows",
    ),
    case("pg_cpu_sql_vs_raw", AtMost(1.5), "the same with the batch SQL function"),
    case("cpu_quorum", AtMost(30.0), "microseconds: CPU time of all processes a message, of e2e_quorum_full"),
    case("wal_per_message", AtMost(0.60), "WAL a message, ours / naive; of e2e_classic_full"),
    case("storm_redis", AtLeast(10.0), "rate of redeliveries that Redis knows / naive; no SQL, no WAL"),
    case("storm_postgres", AtLeast(8.0), "rate of redeliveries that only PostgreSQL knows / naive; no WAL"),
    case(
        "storm_limit",
        Target::None,
        "rate of a consumer that does nothing but acknowledge 500 at a time / naive: the most that a storm of redeliveries can reach",
    ),
    case("latency_200", AtMost(1.2), "99th percentile from publish to commit at 200/s, ours / naive"),
    case("latency_1000", AtMost(0.6), "the same at 1,000/s"),
    case(
        "mirror_lag",
        AtMost(5.0),
        "99th percentile from commit to visible in Redis under full load, in batches' durations",
    ),
    case("redis_bytes", AtMost(0.10), "bytes of Redis a mirrored key, ours / a JSON object per message"),
    case("gc_cpu", AtLeast(5.0), "PostgreSQL's CPU time a collected key, delete by key / ours"),
    case("gc_interference", AtLeast(0.85), "rate while the collection runs / without"),
    case(
        "metrics_cost",
        AtMost(1.02),
        "CPU time of worker and relay a message, with metrics that are read each second / without; of e2e_classic_full",
    ),
    case(
        "console_5m",
        AtMost(300.0),
        "milliseconds: 95th percentile of the console's slowest page, with 5 M rows of trail; no page and no list scans a big table",
    ),
    case(
        "console_interference",
        AtLeast(0.97),
        "rate while three consoles are looked at / while nobody looks, in windows of the same run",
    ),
    case("growth_1m", Target::None, "rate with 1 M keys and audit rows there / with none"),
    case("growth_10m", AtLeast(0.7), "the same with 10 M"),
    case(
        "worker_rss",
        AtMost(64.0 * 1024.0 * 1024.0),
        "bytes: most memory of a worker with a backlog of 1 M messages",
    ),
    case("workers_2", Target::None, "rate with 2 workers / with 1"),
    case("workers_4", Target::None, "rate with 4 workers / with 1"),
    case(
        "hot_stock_1",
        AtLeast(1.5),
        "rate with 1 worker / naive, in bursts of 2,000: one of 15 rows of stock a message, six of ten refused",
    ),
    case(
        "hot_stock_2",
        AtLeast(1.5),
        "rate with 2 workers / naive, in bursts of 2,000: one of 15 rows of stock a message, six of ten refused",
    ),
    case(
        "hot_stock_4",
        AtLeast(1.5),
        "rate with 4 workers / naive, in bursts of 2,000: one of 15 rows of stock a message, six of ten refused",
    ),
    case(
        "hot_one_row_1",
        AtLeast(1.5),
        "rate with 1 worker / naive, in bursts of 2,000: the same row for each message",
    ),
    case(
        "hot_one_row_2",
        AtLeast(1.5),
        "rate with 2 workers / naive, in bursts of 2,000: the same row for each message",
    ),
    case(
        "hot_one_row_4",
        AtLeast(1.5),
        "rate with 4 workers / naive, in bursts of 2,000: the same row for each message",
    ),
    case(
        "hot_two_rows_1",
        AtLeast(1.0),
        "rate with 1 worker / naive, in bursts of 2,000: two of 100 rows a message, in random order",
    ),
    case(
        "hot_two_rows_2",
        AtLeast(1.0),
        "rate with 2 workers / naive, in bursts of 2,000: two of 100 rows a message, in random order",
    ),
    case(
        "hot_two_rows_4",
        AtLeast(1.0),
        "rate with 4 workers / naive, in bursts of 2,000: two of 100 rows a message, in random order",
    ),
    case(
        "hot_batch_1",
        AtLeast(1.5),
        "rate with 1 worker / naive, in bursts of 2,000: 15 rows of stock by a batch function",
    ),
    case(
        "hot_batch_2",
        AtLeast(1.5),
        "rate with 2 workers / naive, in bursts of 2,000: 15 rows of stock by a batch function",
    ),
    case(
        "hot_batch_4",
        AtLeast(1.5),
        "rate with 4 workers / naive, in bursts of 2,000: 15 rows of stock by a batch function",
    ),
    case(
        "hot_events_1",
        AtLeast(1.5),
        "rate with 1 worker / naive, in bursts of 2,000: events with 15 ordering keys",
    ),
    case(
        "hot_events_2",
        AtLeast(1.5),
        "rate with 2 workers / naive, in bursts of 2,000: events with 15 ordering keys",
    ),
    case(
        "hot_events_4",
        AtLeast(1.5),
        "rate with 4 workers / naive, in bursts of 2,000: events with 15 ordering keys",
    ),
    case(
        "e2e_vs_lean",
        Target::None,
        "e2e_classic_full against the baseline without the article's second unique index",
    ),
    case("wal_vs_lean", Target::None, "wal_per_message against the same"),
    case(
        "relay_to_rabbitmq",
        AtLeast(0.95),
        "rate at which the relay empties the table of events / a bare client that publishes and confirms the same messages",
    ),
    case("relay_ordered", AtLeast(0.9), "the same with events of 1,000 ordering keys"),
    case(
        "event_delay_1",
        AtMost(3.0),
        "milliseconds: median from COMMIT to the event's arrival at a consumer, at 1/s; 99th percentile at most 10",
    ),
    case("event_delay_100", AtMost(3.0), "the same at 100/s"),
    case("event_delay_1000", AtMost(3.0), "the same at 1,000/s"),
    case("relay_idle", AtMost(0.003), "cores that a relay uses while there is nothing to publish"),
    case(
        "lease_empty",
        AtLeast(5.0),
        "rate of runs under leases that do nothing / INSERT, COMMIT, nothing, UPDATE, COMMIT on 8 connections",
    ),
    case(
        "lease_50ms_256",
        AtLeast(0.95),
        "rate of 256 runs at the same time, each with a call of 50 ms / 256 in 50 ms",
    ),
    case(
        "lease_idle_10k",
        AtMost(0.02),
        "cores: a worker that holds 10,000 leases and does nothing else; nine of ten renewals are HOT updates",
    ),
    case(
        "lease_redis_rate",
        AtLeast(2.0),
        "keys a second that 50 clients claim and complete in Redis, by our functions / by WATCH, GET, MULTI, SET, EXEC and SET",
    ),
    case("lease_redis_vs_script", Target::None, "the same / by EVALSHA of an article's script and SET"),
    case(
        "lease_redis_cpu",
        AtMost(1.6),
        "CPU time of Redis a key, our functions / EVALSHA of that script and SET, which promise less",
    ),
    case("lease_redis_vs_set", Target::None, "the same / by SET NX and SET, whoever holds it"),
    case(
        "lease_redis_bytes",
        AtMost(0.80),
        "MEMORY USAGE of a completed key, our hash / an article's JSON with the same response",
    ),
    case(
        "lease_dynamodb_cost",
        AtMost(1.0),
        "USD for a million messages in DynamoDB by the requests that moto counts, ours / GetItem, PutItem, UpdateItem of an article",
    ),
    case(
        "http_p50_500",
        AtMost(1.3),
        "median from a request's time to its answer at 500/s, behind the HTTP door / the same handler with its own transaction and no key",
    ),
    case("http_throughput", AtLeast(0.6), "requests a second on 32 connections, the same"),
    case("http_replay", AtLeast(3.0), "requests a second, answered from what is stored / for the first time"),
    case(
        "http_leased_p50_500",
        AtMost(4.0),
        "http_p50_500 with the same handler under a lease, with its own transaction",
    ),
    case("http_leased_throughput", AtLeast(0.2), "http_throughput of the same"),
    case("http_leased_replay", AtLeast(3.0), "http_replay of the same"),
    case(
        "http_gateway_p50_500",
        AtMost(4.0),
        "median from a request's time to its answer at 500/s, through the gateway / through nginx, to the same service",
    ),
    case("http_gateway_throughput", AtLeast(0.2), "requests a second on 32 connections, the same"),
    case(
        "http_gateway_replay",
        AtLeast(1.0),
        "requests a second through the gateway, answered from what is stored / for the first time",
    ),
    case(
        "relay_vs_outbox_core",
        AtLeast(5.0),
        "rate at which the relay empties the table of events / outbox-core and outbox-postgres theirs",
    ),
    case(
        "long_p99",
        AtMost(1.1),
        "a month of data: 99th percentile from publish to commit, last ten minutes / first ten (below 20 minutes thirds)",
    ),
    case("long_cpu", AtMost(1.1), "the same: CPU time of all processes a message"),
    case(
        "long_bytes_per_key",
        AtMost(1.3),
        "the same: bytes of the table of keys a live key, at the end / when its keys had just been inserted",
    ),
    case(
        "long_wal",
        AtMost(2_000.0),
        "the same: bytes of WAL a message in the last third, a checkpoint each five minutes",
    ),
];

impl Case {
    /// Returns whether the case can be measured over a network: its programs talk to the three servers only.
    pub(crate) fn crosses_network(&self) -> bool {
        const OF_BATCHES: [&str; 5] =
            ["e2e_classic_full", "cpu_per_message", "wal_per_message", "e2e_quorum_full", "e2e_rust_handler"];
        const OF_TIMES: [&str; 2] = ["latency_200", "latency_1000"];
        const OF_EVENTS: [&str; 5] =
            ["relay_to_rabbitmq", "relay_ordered", "event_delay_1", "event_delay_100", "event_delay_1000"];
        const OF_LEASES: [&str; 2] = ["lease_empty", "lease_50ms_256"];
        self.is_of(Group::Hot)
            || self.is_of(Group::Http)
            || [&OF_BATCHES[..], &OF_TIMES, &OF_EVENTS, &OF_LEASES]
                .iter()
                .any(|names| names.contains(&self.name))
    }

    /// Cases that begin with the same word belong together.
    pub(crate) fn is_of(&self, group: Group) -> bool {
        let beginning = match group {
            Group::Leases => "lease_",
            Group::Http => "http_",
            Group::Hot => "hot_",
            Group::Long => "long_",
        };
        self.name.starts_with(beginning)
    }
}

/// Cases that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Group {
    /// What is held for a time: in PostgreSQL, Redis, DynamoDB
    Leases,
    /// The HTTP door and the gateway
    Http,
    /// Rows that many messages update
    Hot,
    /// A month of data in an hour; only where it is named
    Long,
}

/// The case of a name.
pub(crate) fn find(name: &str) -> Option<Case> {
    CASES.iter().copied().find(|case| case.name == name)
}
