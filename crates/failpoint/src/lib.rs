//! Named steps of the programs at which a test ends the process (feature `failpoints`), or a task with all that it owns (feature
//! `testing`). Without these features, which no release build has, steps do nothing.

/// The steps of each point: one before it, and one after it unless it stands in the last list.
macro_rules! steps {
    ($($area:literal: $($point:literal),+;)+ before alone: $($alone:literal),+;) => {
        &[
            $($(concat!($area, ".", $point, ".before"), concat!($area, ".", $point, ".after")),+),+,
            $(concat!($alone, ".before")),+
        ]
    };
}

/// Every step, before and after each input or output of worker, relay and garbage collection. `tests/it/crash_points.rs`
/// kills a process at each of them.
pub const STEPS: &[&str] = steps! {
    "worker":
        "precheck", "look_up_suspects", "mark", "begin", "commit_fresh", "claim_fresh", "claim", "look_up",
        "retake", "handle", "fail", "refusal", "responses", "audit", "mirror_queue", "reply", "letter",
        "commit", "record_failure", "reject", "publish", "ack";
    "observe": "commit", "ack";
    "relay": "take", "mirror", "delete", "commit";
    "events": "take", "publish", "delete", "fail", "commit", "announce";
    "gc": "partitions", "seal", "drop", "lock", "delete", "count";
    "lease": "claim", "begin", "call", "checkpoint", "transaction", "commit", "fail";
    "http": "claim", "handle", "leave", "store", "commit";
    "leased": "claim", "handle", "end";
    before alone: "lease.renew", "lease.complete";
};

#[cfg(feature = "testing")]
tokio::task_local! {
    /// The step at which the current task ends.
    static LAST_STEP: &'static str;
}

/// Panic payload of a task that has reached its last step.
#[cfg(feature = "testing")]
struct FailpointReached;

/// Runs a future until this step. Returns `None` if the step was reached: the future was dropped with all that it owned, and the process
/// goes on. A future that completes before the step returns its result.
///
/// # Panics
/// If the future does. With `panic = "abort"`, which tests can't use, the step ends the process.
#[cfg(feature = "testing")]
pub async fn run_until<T>(step: &'static str, run: impl Future<Output = T>) -> Option<T> {
    use futures::FutureExt as _;

    debug_assert!(STEPS.contains(&step), "{step} is not in the list of steps");
    match std::panic::AssertUnwindSafe(LAST_STEP.scope(step, run)).catch_unwind().await {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<FailpointReached>() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Wraps a task that works for the current task, so that it ends at the same step.
#[cfg(feature = "testing")]
pub fn inherit<F: Future>(task: F) -> impl Future<Output = F::Output> {
    let last = LAST_STEP.try_with(|last| *last).ok();
    async move {
        match last {
            Some(last) => LAST_STEP.scope(last, task).await,
            None => task.await,
        }
    }
}

/// Ends the current task by a panic if a task that worked for it has reached the last step; else does nothing.
#[cfg(feature = "testing")]
pub fn propagate_end(other: tokio::task::JoinError) {
    if let Ok(panic) = other.try_into_panic()
        && panic.is::<FailpointReached>()
    {
        std::panic::resume_unwind(panic);
    }
}

/// Returns the task unchanged.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn inherit<F: Future>(task: F) -> F {
    task
}

/// Does nothing.
#[cfg(not(feature = "testing"))]
#[inline(always)]
pub fn propagate_end(_: tokio::task::JoinError) {}

/// Reaches a step: of a process in this crate's tests, or of a task in those of an embedding program.
#[cfg(any(feature = "failpoints", feature = "testing"))]
pub fn step(name: &'static str) {
    debug_assert!(STEPS.contains(&name), "{name} is not in the list of steps");
    #[cfg(feature = "testing")]
    if LAST_STEP.try_with(|last| *last == name).unwrap_or(false) {
        // Without the panic hook, so that nothing is reported.
        std::panic::resume_unwind(Box::new(FailpointReached));
    }
    #[cfg(feature = "failpoints")]
    end_at(name);
}

/// Ends the process at `FAILPOINT=worker.commit.after` by SIGABRT; `…=starve` blocks every thread of the runtime.
#[cfg(feature = "failpoints")]
fn end_at(name: &'static str) {
    use std::sync::OnceLock;

    static CHOSEN_STEP: OnceLock<Option<String>> = OnceLock::new();
    let Some(chosen) = CHOSEN_STEP.get_or_init(|| std::env::var("FAILPOINT").ok()) else { return };
    if chosen == name {
        eprintln!("failpoint: {name}");
        std::process::abort();
    }
    if chosen.strip_suffix("=starve") == Some(name) {
        eprintln!("failpoint: {name}: the runtime starves");
        for _ in 0..tokio::runtime::Handle::current().metrics().num_workers() {
            tokio::spawn(async { std::thread::sleep(std::time::Duration::from_secs(3_600)) });
        }
        std::thread::sleep(std::time::Duration::from_secs(3_600));
    }
}

/// Reaches a step with these messages. `FAILPOINT=worker.handle.before=key:kill` ends the process if a key begins with `kill`, to simulate
/// a message that crashes its process.
#[cfg(feature = "failpoints")]
pub fn step_with<'a>(name: &'static str, mut keys: impl Iterator<Item = &'a str>) {
    step(name);
    let chosen = std::env::var("FAILPOINT").unwrap_or_default();
    let prefix = chosen.strip_prefix(name).and_then(|rest| rest.strip_prefix("=key:"));
    if prefix.is_some_and(|prefix| keys.any(|key| key.starts_with(prefix))) {
        eprintln!("failpoint: {name}: a message kills the process");
        std::process::abort();
    }
}

/// Reaches a step with these messages.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn step_with<'a>(name: &'static str, _: impl Iterator<Item = &'a str>) {
    step(name);
}

/// Does nothing.
#[cfg(not(any(feature = "failpoints", feature = "testing")))]
#[inline(always)]
pub fn step(_: &'static str) {}
