//! Wakes a lane that found no events when PostgreSQL notifies of a new one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::idle::{IdleBackoff, MIN_PAUSE};
use oncely_core::backoff::Backoff;
use oncely_failpoint::step;
use oncely_postgres::{EventListener, PgSettings, describe};

/// Time for which a session listens: a new one is opened on the host that takes writes by then.
const SESSION_LIFETIME: Duration = Duration::from_secs(600);

/// Maximum time of an announcement: its withdrawal finds a session that was lost without a word.
const ANNOUNCEMENT_TIME: Duration = Duration::from_secs(30);

/// Time without events after which the relay announces that it waits: until then its lanes read more often than that.
const QUIET_TIME: Duration = Duration::from_millis(5);

/// State of the lanes, for the listener.
#[derive(Clone, Copy, Debug, Default)]
struct LaneReads {
    /// Lanes that found no events at their last read, and wait.
    idle: usize,
    /// Reads of all lanes so far.
    total: u64,
    /// Time of the last read that found events.
    found_at: Option<Instant>,
}

/// Connects lanes that wait for events with the listener that wakes them.
#[derive(Debug, Default)]
pub(super) struct LaneWaker {
    reads: watch::Sender<LaneReads>,
    wake: Notify,
}

/// A lane's part of the waker.
#[derive(Debug)]
pub(super) struct LaneWait<'a> {
    waker: &'a LaneWaker,
    last_read: ReadResult,
}

/// Result of a lane's read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// No events wait.
    Nothing,
    /// Some events.
    Some,
    /// As many as fit into a batch: others wait.
    Full,
    /// The lane pauses for a reason of its own, which no notification shortens.
    Failed,
}

impl LaneWaker {
    /// Adds a lane, which is at work.
    pub(super) fn lane(&self) -> LaneWait<'_> {
        LaneWait { waker: self, last_read: ReadResult::Failed }
    }

    /// Wakes an idle lane, and waits until any lane has read; returns whether it found events.
    async fn wake_lane(&self) -> bool {
        let mut reads = self.reads.subscribe();
        let before = *reads.borrow_and_update();
        self.wake.notify_one();
        match reads.wait_for(|reads| reads.total > before.total).await {
            Ok(reads) => reads.found_at > before.found_at,
            Err(_) => false,
        }
    }

    /// Waits until a lane is idle, and none has found events for [`QUIET_TIME`].
    async fn wait_until_quiet(&self) {
        let mut reads = self.reads.subscribe();
        loop {
            let Ok(found_at) = reads.wait_for(|reads| reads.idle > 0).await.map(|reads| reads.found_at)
            else {
                return;
            };
            match found_at.map(|at| at + QUIET_TIME) {
                Some(quiet_at) if quiet_at > Instant::now() => sleep_until(quiet_at).await,
                _ => return,
            }
        }
    }

    /// Waits until a lane finds events, or none is idle.
    async fn wait_until_busy(&self) {
        let mut reads = self.reads.subscribe();
        let before = reads.borrow_and_update().found_at;
        let _ = reads.wait_for(|reads| reads.found_at > before || reads.idle == 0).await;
    }
}

impl LaneWait<'_> {
    /// Records the result of a read, as soon as it is known.
    pub(super) fn record_read(&mut self, result: ReadResult) {
        let was_idle = std::mem::replace(&mut self.last_read, result) == ReadResult::Nothing;
        let is_idle = result == ReadResult::Nothing;
        self.waker.reads.send_modify(|reads| {
            reads.total += 1;
            if matches!(result, ReadResult::Some | ReadResult::Full) {
                reads.found_at = Some(Instant::now());
            }
            match (was_idle, is_idle) {
                (false, true) => reads.idle += 1,
                (true, false) => reads.idle -= 1,
                _ => {}
            }
        });
        if result == ReadResult::Full {
            // Another lane helps.
            self.waker.wake.notify_one();
        }
    }

    /// Returns whether more events waited at the last read than it took.
    pub(super) fn knows_of_more(&self) -> bool {
        self.last_read == ReadResult::Full
    }

    /// Waits until this lane is woken; for ever unless it is idle. May be cancelled.
    pub(super) async fn woken(&self) {
        match self.last_read == ReadResult::Nothing {
            true => self.waker.wake.notified().await,
            false => std::future::pending().await,
        }
    }
}

/// Wakes lanes when PostgreSQL notifies of events, until `stop`. Announces that the relay waits while its lanes find no events. Without a
/// session for notifications, lanes find events by their own reads.
pub(super) async fn wake_lanes(
    waker: Arc<LaneWaker>,
    settings: PgSettings,
    application: String,
    poll: Duration,
    stop: CancellationToken,
) {
    let mut backoff = Backoff::default();
    while !stop.is_cancelled() {
        let began = Instant::now();
        let result = match EventListener::open(&settings, &application).await {
            Ok(mut listener) => listen(&waker, &mut listener, poll, &stop).await,
            Err(error) => Err(error),
        };
        if result.is_ok() || began.elapsed() > ANNOUNCEMENT_TIME {
            backoff.reset();
        }
        if let Err(error) = result {
            tracing::info!(error = describe(&error), "no notifications of events; retrying");
            let _ = stop.run_until_cancelled(sleep(backoff.next_pause())).await;
        }
    }
}

/// Wakes lanes until `stop`, for [`SESSION_LIFETIME`], or until the session fails. Statements are awaited to their end.
async fn listen(
    waker: &LaneWaker,
    listener: &mut EventListener,
    poll: Duration,
    stop: &CancellationToken,
) -> sqlx::Result<()> {
    let end = Instant::now() + SESSION_LIFETIME;
    // Notifications without events, such as those of which another relay took the events.
    let mut idle = IdleBackoff::new(MIN_PAUSE, poll);
    while Instant::now() < end && !stop.is_cancelled() {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = waker.wait_until_quiet() => {}
            // Read while lanes are at work, too: PostgreSQL keeps notifications that one session has not read for all.
            notified = listener.wait() => {
                notified?;
                let _ = stop.run_until_cancelled(sleep(MIN_PAUSE)).await;
                continue;
            }
            () = sleep_until(end) => break,
        }
        step("events.announce.before");
        let is_announced = listener.announce_wait().await?;
        step("events.announce.after");
        // A transaction that had added its event before the announcement does not notify.
        let found = stop.run_until_cancelled(waker.wake_lane()).await.unwrap_or(true);
        let is_notified = !found
            && tokio::select! {
                biased;
                () = stop.cancelled() => false,
                () = waker.wait_until_busy() => false,
                notified = listener.wait() => notified.map(|()| true)?,
                () = sleep(if is_announced { ANNOUNCEMENT_TIME } else { poll }) => false,
            };
        let withdraw = async {
            // At its stop the session ends, and its announcement with it.
            match is_announced && !stop.is_cancelled() {
                true => listener.withdraw_wait().await,
                false => Ok(()),
            }
        };
        if !is_notified {
            withdraw.await?;
            continue;
        }
        tracing::debug!("notified of events");
        let (found, withdrawn) = tokio::join!(stop.run_until_cancelled(waker.wake_lane()), withdraw);
        withdrawn?;
        let pause = idle.next_pause(usize::from(found.unwrap_or(true)), 1);
        let _ = stop.run_until_cancelled(sleep(pause)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lane_is_woken_only_while_it_is_idle() {
        let waker = LaneWaker::default();
        let (mut first, mut second) = (waker.lane(), waker.lane());
        first.record_read(ReadResult::Nothing);
        second.record_read(ReadResult::Failed);
        waker.wake.notify_one();
        tokio::select! {
            biased;
            () = second.woken() => panic!("a lane that has failed was woken"),
            () = first.woken() => {}
        }
    }

    #[tokio::test]
    async fn the_listener_waits_for_the_read_of_the_lane_that_it_wakes() {
        for (result, found) in
            [(ReadResult::Some, true), (ReadResult::Nothing, false), (ReadResult::Failed, false)]
        {
            let waker = LaneWaker::default();
            let mut lane = waker.lane();
            lane.record_read(ReadResult::Nothing);
            let reading = async {
                lane.woken().await;
                lane.record_read(result);
            };
            assert_eq!(tokio::join!(waker.wake_lane(), reading).0, found, "{result:?}");
        }
    }

    #[tokio::test]
    async fn a_relay_is_quiet_when_one_lane_is_idle_and_none_has_found_events_for_a_moment() {
        let waker = LaneWaker::default();
        let (mut first, mut second) = (waker.lane(), waker.lane());
        first.record_read(ReadResult::Some);
        second.record_read(ReadResult::Nothing);
        let began = Instant::now();
        waker.wait_until_quiet().await;
        assert!(began.elapsed() >= QUIET_TIME);
        let busy = waker.wait_until_busy();
        tokio::join!(busy, async { second.record_read(ReadResult::Full) });
    }
}
