//! A process dies at each step of its runs under leases, with one run and with thirty-two; then another one goes on, and the provider's
//! books must be such as each step's rule allows.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use oncely_failpoint::STEPS;
use testbed::Provider;
use testbed::checker::{Evidence, LEASED, Leases, Letter, Order, SCHEMA, Sent, Side, drain_queue, judge};

use crate::support::World;

/// How many runs there are when a process dies.
const RUNS: [usize; 2] = [1, 32];
/// How often one that fails beside others runs again before its failure is judged.
const UNDECIDED: u32 = 2;
/// Longer than a third of a lease, so that it is renewed meanwhile.
const LONG: u64 = 2_500;

async fn world() -> World {
    let mut world = World::new().await;
    sqlx::raw_sql(SCHEMA).execute(&mut world.sql).await.unwrap();
    let text = format!(
        "[worker]\nshutdown = \"8s\"\n[[consumers]]\nname = {LEASED:?}\nqueue = {:?}\nqueue_type = \"classic\"\n\
         tenant = {{ header = \"x-tenant-id\" }}\nkey = {{ property = \"message_id\" }}\n\
         lease = {{ time = \"5s\", max_run = \"60s\", concurrency = 32 }}\n\
         retry = {{ delays = [\"50ms\"], max_attempts = 4, max_crashes = 3 }}",
        world.queue(LEASED)
    );
    world.configure(&text);
    world.apply_topology().await;
    world
}

/// Messages that call one side each, all sides in turn, the one that must not be repeated first; and one whose first call fails, where that
/// is needed or there is room.
fn orders(step: &str, runs: usize) -> Vec<Order> {
    let fails = usize::from(runs > 1 || step.contains("fail"));
    let order = |name: &str, side, tears| Order {
        tenant: "acme".to_owned(),
        key: format!("{step} {name}"),
        sides: vec![side],
        tears,
        refusals: 0,
        delay: if step.contains("renew") { LONG } else { 10 },
    };
    let others = [Side::Once, Side::Asked, Side::Pay, Side::Charge, Side::Mail].into_iter().cycle();
    let others =
        others.take(runs - fails).enumerate().map(|(number, side)| order(&number.to_string(), side, 0));
    // Where others run, it waits until one of them begins after its first failure and succeeds, or until it has been alone for a while.
    let tears = if runs > 1 { 1 + UNDECIDED } else { 1 };
    others.chain((fails > 0).then(|| order("torn", Side::Pay, tears))).collect()
}

async fn dies_at_every_step(runs: usize) {
    let mut world = world().await;
    let provider = Provider::start().await.unwrap();
    let address = ("PROVIDER", provider.address().to_string());
    // One whose failure none of the others answers for runs again.
    let gave_back = if runs > 1 { UNDECIDED as usize } else { 0 };
    let mut leases = Leases { max_crashes: 3, lease: 5.0, gave_back, ..Leases::default() };
    let mut sent = 0;
    let steps: Vec<&str> = STEPS.iter().copied().filter(|step| step.starts_with("lease.")).collect();
    assert!(steps.len() >= 16);
    for step in &steps {
        let orders = orders(step, runs);
        for order in &orders {
            let intent = order.intent();
            leases.sent.intend(&intent);
            let properties = crate::support::message(&intent.tenant, &intent.key);
            world.publish_bytes(LEASED, properties, &intent.body).await;
            leases.sent.learn(&intent, testbed::checker::Class::Confirmed);
        }
        sent += orders.len();
        let fail = [address.clone(), ("FAILPOINT", (*step).to_owned())];
        let mut dying = world.start_with("charging", "dying", &fail);
        let ended = dying.wait_for_end(Duration::from_secs(30)).await;
        let status = ended.unwrap_or_else(|error| panic!("{step}, {runs} runs: {error}: {}", dying.output()));
        assert_eq!(status.signal(), Some(6), "{step}, {runs} runs: {status}: {}", dying.output());
        // Whoever held them is dead: nobody has to wait for the end of a lease to see what follows.
        let over = "update oncely.idempotency_keys set (not_before, grace_ends_at) = (now(), now()) where owner is not null";
        sqlx::query(over).execute(&mut world.sql).await.unwrap();
        let surviving = world.start_with("charging", "surviving", std::slice::from_ref(&address));
        let ended = "select count(*) from oncely.idempotency_keys where status <> 'IN_PROGRESS'";
        world.wait_for(ended, i64::try_from(sent).unwrap()).await;
        world.wait_for_ready(&world.queue(LEASED), 0).await;
        world.stop(surviving).await;
    }
    let queue = world.queue(LEASED);
    let letters: Vec<Letter> =
        drain_queue(&world.urls.rabbitmq, &format!("{queue}.dead"), Duration::from_millis(500))
            .await
            .unwrap();
    for left in [queue.clone(), format!("{queue}.retry.50ms")] {
        assert_eq!(world.broker.ready(&left).await.unwrap(), 0, "{left}");
    }
    leases.dead.extend(letters.iter().cloned());
    leases.calls = provider.calls();
    // Each step is a death, and one key has one of them.
    leases.interruptions = vec![0.0];
    leases.read(&mut world.sql).await.unwrap();
    let evidence = Evidence { leases: leases.clone(), ..Evidence::default() };
    assert_eq!(judge(&Sent::default(), &evidence), [], "{runs} runs");
    // What may not be repeated is given up exactly where it may have happened.
    let unknown = letters.iter().all(|letter| letter.reason == "outcome_unknown");
    assert!(unknown && !letters.is_empty(), "{letters:?}");
    let before_the_call = |letter: &Letter| letter.key.1.contains("lease.claim");
    assert!(!letters.iter().any(before_the_call), "{letters:?}");
    assert!(
        leases.count("taken_over") as usize >= steps.len() - 4,
        "{} takeovers",
        leases.count("taken_over")
    );
    eprintln!(
        "{} steps with {runs} runs: {} calls, {} takeovers, {} unknown",
        steps.len(),
        leases.calls.len(),
        leases.count("taken_over"),
        leases.unknown()
    );
}

#[tokio::test]
async fn a_process_dies_at_every_step_of_one_run_under_a_lease() {
    dies_at_every_step(RUNS[0]).await;
}

#[tokio::test]
async fn a_process_dies_at_every_step_of_thirty_two_runs_under_leases() {
    dies_at_every_step(RUNS[1]).await;
}
