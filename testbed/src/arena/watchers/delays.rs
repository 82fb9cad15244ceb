//! How long a busy machine kept a process from running. Where a few cores have much to do, a page is late without anybody's fault: what is
//! measured by the clock leaves these times out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

/// How often our own clock is looked at.
const TICK: Duration = Duration::from_millis(20);
/// A timer is late by as much on a machine at rest.
const USUAL: Duration = Duration::from_millis(5);

/// How late our own tasks have been so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Lateness(Arc<AtomicU64>);

impl Lateness {
    /// Begins to measure it.
    pub(super) fn start() -> (Self, JoinHandle<()>) {
        let lateness = Self::default();
        let kept = lateness.clone();
        let task = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                tokio::time::sleep(TICK).await;
                let late = begun.elapsed().saturating_sub(TICK + USUAL);
                kept.0.fetch_add(u64::try_from(late.as_micros()).unwrap_or(0), Ordering::Relaxed);
            }
        });
        (lateness, task)
    }
}

/// Of one process, and of us.
#[derive(Clone, Debug)]
pub(super) struct Delays {
    pub(super) process: u32,
    pub(super) ours: Lateness,
}

impl Delays {
    /// All of them so far.
    pub(super) fn so_far(&self) -> Duration {
        waited(self.process) + Duration::from_micros(self.ours.0.load(Ordering::Relaxed))
    }
}

/// How long a process's threads were ready to run, and did not, by the kernel's books (proc(5), schedstat).
fn waited(process: u32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Duration::ZERO };
    let of_one = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    threads.flatten().filter_map(of_one).map(Duration::from_nanos).sum()
}
