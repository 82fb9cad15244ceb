//! `oncely console`, as a browser sees it: over HTTP, with real servers behind it.

mod access;
mod actions;
mod client;
mod document;
mod looks;
mod operations;
mod outages;
mod scans;
mod settle;
mod trail;

use sqlx::AssertSqlSafe;
use testbed::{Process, eventually};

use crate::support::World;
use crate::support::http::address;
pub(crate) use client::{Answer, Client, encoded};

/// A console that runs.
pub(crate) struct Running {
    pub(crate) process: Process,
    /// Nobody yet.
    pub(crate) stranger: Client,
}

impl Running {
    /// Starts one with further arguments and environment.
    pub(crate) async fn start(world: &World, arguments: &[&str], more: &[(&'static str, String)]) -> Self {
        let mut all = vec!["console"];
        if !arguments.contains(&"--listen") {
            all.extend(["--listen", "127.0.0.1:0"]);
        }
        all.extend(arguments);
        // Each with a log of its own: what it printed is what it says.
        let process = world.start_verb("oncely", &all, &format!("console-{}", uuid::Uuid::new_v4()), more);
        let address = address(&process).await;
        Self { process, stranger: Client::new(&address) }
    }

    /// The links that were printed so far.
    pub(crate) fn links(&self) -> Vec<String> {
        let output = self.process.output();
        let tokens = output.lines().filter_map(|line| line.split_once("/login?token="));
        tokens.map(|(_, token)| format!("/login?token={token}")).collect()
    }

    /// Whoever follows the link that was printed at the start: an operator.
    pub(crate) async fn operator(&self) -> Client {
        let link = eventually("a link", || async {
            self.links().pop().ok_or_else(|| anyhow::anyhow!("{}", self.process.output()))
        });
        let answer = follow(&self.stranger, &link.await.expect("a link")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        signed_in(&self.stranger, &answer)
    }
}

/// Opens a link, and sends the form that is there.
pub(crate) async fn follow(client: &Client, link: &str) -> Answer {
    let page = client.page(link).await;
    assert_eq!(page.header("set-cookie"), None, "whoever only looks uses nothing up");
    client.post("/login", &[("token", page.between("name=\"token\" value=\"", "\""))]).await
}

/// A console, and its operator.
pub(crate) async fn console(world: &World) -> (Running, Client) {
    let running = Running::start(world, &[], &[]).await;
    let operator = running.operator().await;
    (running, operator)
}

/// With the cookie that an answer brings.
pub(crate) fn signed_in(client: &Client, answer: &Answer) -> Client {
    let cookie = answer.header("set-cookie").unwrap_or_else(|| panic!("no cookie: {answer:?}"));
    Client { cookie: cookie.split(';').next().map(str::to_owned), ..client.clone() }
}

/// Statistics of an hour, a process, dead letters of two groups, events, and what people did.
pub(crate) async fn furnish(world: &mut World) {
    let statements = "
        select oncely.beat('00000000-0000-7000-8000-000000000001', 'worker', 'worker-1', '0.1.0', 'host', 1, 'digest', 'ready', null, '[]');
        select oncely.register_consumer('payments', '7 days', '1 day', 'body', 'dead_letter', 'worker-1');
        insert into oncely.stats
        select date_bin('10 seconds', clock_timestamp() - s * interval '10 seconds', 'epoch'), 'payments', gen_random_uuid(),
            100, 90, 1, 7, 1, 0, s % 30 / 29, 0, 0, array_fill(5::bigint, array[20])
        from generate_series(0, 360) as s;
        insert into oncely.relay_stats
        select date_bin('10 seconds', clock_timestamp() - s * interval '10 seconds', 'epoch'), t, gen_random_uuid(), 10, 0, 0, 1, 0.5
        from generate_series(0, 360) as s, unnest(array['redis', 'rabbitmq']) as t;
        insert into oncely.dead_letters (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, state,
            generation, times, failure_group, exchange, routing_key, properties, headers, body, body_size, updated_at, trace_id)
        select 'acme', gen_random_uuid(), 'payments', 'dead-' || n, clock_timestamp() - n * interval '1 minute', 'attempts_exhausted', 'P0001',
            'boom at ' || n, 6, 'payments', 'worker-1', case n % 7 when 0 then 'discarded' when 1 then 'requeued' else 'waiting' end,
            1, 1, 'attempts_exhausted/P0001/' || case when n < 60 then 'aaaaaaaa' else 'bbbbbbbb' end, 'orders', 'order.paid', '{\"type\": \"paid\"}',
            '{\"x-tenant-id\": \"acme\", \"password\": \"geheim\"}', convert_to('{\"card\": {\"number\": \"4111\", \"holder\": \"A. Example\"}}', 'utf8'), 50,
            clock_timestamp() - n * interval '1 minute', 'abc'
        from generate_series(1, 130) as n;
        insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
        select 'acme', clock_timestamp() - n * interval '1 second', 1, 3100, 'payments', 'key-' || n, 'payments', 'completed', 'worker-1'
        from generate_series(1, 130) as n;
        insert into oncely.events (tenant, id, created_at, available_at, attempts, state, exchange, routing_key, payload, reason, last_error)
        select 'acme', gen_random_uuid(), clock_timestamp() - n * interval '1 minute', clock_timestamp(), 12, 'parked', 'nowhere', 'x', '{}', 'unroutable', 'NO_ROUTE'
        from generate_series(1, 3) as n;
        select oncely.claim_lease('acme', 'payments', 'held-' || n, null, 'run ' || n, '1 hour', '1 hour') from generate_series(1, 60) as n;
        select oncely.record_action('', 'pause', '{}', 1, 'a deployment', 'ana');";
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(&mut world.sql).await.expect("furnished");
}

/// Looks at a page and at everything that it links to, and so on; checks each, and returns them by their paths.
pub(crate) async fn crawl(client: &Client, from: &[&str], most: usize) -> Vec<(String, Answer)> {
    let mut seen: std::collections::BTreeSet<String> = from.iter().map(|path| (*path).to_owned()).collect();
    let mut left: std::collections::VecDeque<String> = seen.iter().cloned().collect();
    let mut found = Vec::new();
    // Links that differ in nothing but a row's own id are looked at for the first few.
    let mut alike: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    while let Some(path) = left.pop_front() {
        assert!(
            found.len() < most,
            "more than {most} pages: {found:?}",
            found = found.iter().map(|(p, _)| p).collect::<Vec<_>>()
        );
        if path.contains("/keys/tail") {
            continue;
        }
        let answer = client.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            for element in document::check(&path, &answer.body) {
                let link = match element.name.as_str() {
                    "a" | "link" => element.get("href"),
                    "script" => element.get("src"),
                    // What a form leads to when nothing is filled in.
                    "form" if element.get("method").is_none() => element.get("action"),
                    "button" => element.get("data-follow"),
                    _ => None,
                };
                let Some(link) = link.filter(|link| link.starts_with('/')) else { continue };
                let link = link.split('#').next().unwrap_or_default().to_owned();
                let names: Vec<&str> =
                    link.split(['?', '&']).map(|part| part.split('=').next().unwrap_or_default()).collect();
                let count = alike.entry(names.join("&")).or_default();
                if *count < 8 && seen.insert(link.clone()) {
                    *count += 1;
                    left.push_back(link);
                }
            }
        }
        found.push((path, answer));
    }
    found
}
