//! Deliveries on their way to the lanes, and their division into batches.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use super::aside::{BatchOrigin, DeferredDeliveries};
use super::pace::Pace;
use super::turns::{LateRoom, TenantFn, TenantTurns};
use crate::worker::candidate::MAX_TRANSACTION_BYTES;
use crate::worker::prediction::MAX_SMALL_BATCH;
use oncely_core::identity::IdentityPart;

/// Maximum wait of a lane for a fuller batch: about the time of a full one on a machine of two cores. A slow handler delays its neighbours
/// no longer than that.
const FILL_WAIT: Duration = Duration::from_millis(20);

/// Deliveries on their way to the lanes, taken by one lane at a time.
#[derive(Debug)]
pub(crate) struct Arrivals<T> {
    arriving: Mutex<ArrivalQueue<T>>,
    /// Deliveries that wait beside the lanes.
    pub(crate) aside: Arc<DeferredDeliveries<T>>,
    /// Number of lanes with an undecided batch.
    busy_lanes: watch::Sender<usize>,
    /// Maximum number of messages in a batch.
    max_messages: usize,
    /// Limits the number of messages by the time that the handler takes.
    pace: Option<Arc<Pace>>,
    /// Maximum number of messages in a batch at one of several nodes, which share the prefetch.
    share: Option<Arc<AtomicUsize>>,
    /// Messages from which a batch is not waited for: the broker may send no more as long as the other lanes hold theirs.
    full_size: usize,
    /// Maximum number of deliveries aside: half of the messages that the broker sends ahead of one queue.
    max_aside: usize,
    /// Maximum number of bytes of the deliveries aside.
    max_aside_bytes: usize,
}

#[derive(Debug)]
struct ArrivalQueue<T> {
    receiver: mpsc::Receiver<T>,
    /// Deliveries by tenant, if tenants take turns.
    turns: Option<TenantTurns<T>>,
    /// Deliveries from aside were taken last: new ones are next.
    was_from_aside: bool,
    /// One of a late tenant was taken last, before those of others, which are next.
    was_late: bool,
}

impl<T> ArrivalQueue<T> {
    /// Takes up to `max_messages` deliveries into `batch`, and waits while there are none; returns their number, 0 at the end. Cancel safe.
    async fn receive(
        &mut self,
        batch: &mut Vec<T>,
        max_messages: usize,
        late: &HashSet<IdentityPart>,
    ) -> usize {
        match &mut self.turns {
            Some(turns) => turns.receive(&mut self.receiver, batch, max_messages, late).await,
            None => self.receiver.recv_many(batch, max_messages).await,
        }
    }

    /// Returns whether a delivery has arrived of a tenant that is not late, as far as tenants take turns. Sorts received deliveries first.
    fn has_others(&mut self, late: &HashSet<IdentityPart>) -> bool {
        self.turns.as_mut().is_some_and(|turns| turns.has_others(&mut self.receiver, late))
    }

    /// Returns whether a delivery of a late tenant has arrived, as far as tenants take turns.
    fn has_late(&self, late: &HashSet<IdentityPart>) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.has_late(late))
    }

    /// Returns whether the first delivery of `batch` is of a late tenant; `false` unless tenants take turns.
    fn begins_with_late(&self, batch: &[T], late: &HashSet<IdentityPart>) -> bool {
        self.turns.as_ref().zip(batch.first()).is_some_and(|(turns, one)| turns.is_of_late(one, late))
    }

    /// Takes a delivery of a late tenant into `batch`.
    fn take_late(&mut self, batch: &mut Vec<T>, late: &HashSet<IdentityPart>) {
        if let Some(turns) = &mut self.turns {
            turns.take_late(batch, late);
        }
    }

    /// Takes up to `max_messages` deliveries into `batch` without waiting.
    fn receive_now(&mut self, batch: &mut Vec<T>, max_messages: usize, late: &HashSet<IdentityPart>) {
        if let Some(turns) = &mut self.turns {
            turns.receive_now(&mut self.receiver, batch, max_messages, late);
            return;
        }
        while batch.len() < max_messages
            && let Ok(one) = self.receiver.try_recv()
        {
            batch.push(one);
        }
    }
}

impl<T> Arrivals<T> {
    /// Creates a buffer for batches of up to `max_messages` messages, for this number of `lanes`, to which the broker sends `prefetch`
    /// messages ahead. At most `max_aside` deliveries with `max_aside_bytes` bytes wait aside.
    pub(crate) fn new(
        receiver: mpsc::Receiver<T>,
        max_messages: usize,
        prefetch: usize,
        lanes: usize,
        (max_aside, max_aside_bytes): (usize, usize),
    ) -> Self {
        let full_size = max_messages.min(prefetch / lanes.saturating_mul(2).max(1));
        let arriving =
            Mutex::new(ArrivalQueue { receiver, turns: None, was_from_aside: false, was_late: false });
        let busy_lanes = watch::Sender::new(0);
        Self {
            arriving,
            aside: Arc::default(),
            busy_lanes,
            max_messages,
            pace: None,
            share: None,
            full_size,
            max_aside,
            max_aside_bytes,
        }
    }

    /// Makes tenants take turns within this number of messages, which the broker sends ahead.
    pub(crate) fn with_turns(
        mut self,
        ahead: usize,
        tenant_of: TenantFn<T>,
        size_of: fn(&T) -> usize,
    ) -> Self {
        // Beside those aside, and those that are not settled yet.
        let late_room = LateRoom { messages: self.max_aside / 2, bytes: self.max_aside_bytes / 2, size_of };
        self.arriving.get_mut().turns = Some(TenantTurns::new(tenant_of, ahead, late_room));
        self
    }

    /// Makes batches smaller where the handler takes long.
    pub(crate) fn with_pace(mut self, pace: Option<Arc<Pace>>) -> Self {
        self.pace = pace;
        self
    }

    /// Makes batches smaller if other nodes share the prefetch.
    pub(crate) fn with_share(mut self, share: Option<Arc<AtomicUsize>>) -> Self {
        self.share = share;
        self
    }

    /// Returns the maximum number of messages in the next batch.
    fn next_batch_max(&self) -> usize {
        let share = self.share.as_ref().map(|share| share.load(Ordering::Relaxed).max(1));
        let pace = self.pace.as_ref().map(|pace| pace.max_messages());
        share.into_iter().chain(pace).fold(self.max_messages, usize::min)
    }

    /// Takes deliveries from aside that must make room, so that deliveries behind them in the queue come.
    pub(crate) fn take_overflow(&self, size: impl Fn(&T) -> usize) -> Vec<T> {
        self.aside.take_overflow(Instant::now(), self.max_aside, self.max_aside_bytes, size)
    }

    /// Takes the next batch into `batch`, which is empty; it stays empty at the end. A guard is held until the batch is decided; `None` if
    /// the batch has no message of a late tenant.
    ///
    /// At a low rate a batch is the messages that have come, without waiting. If more than a small batch has come while other lanes are at
    /// work, the processors have enough to do, and a batch taken early would only cost one commit more: the lane waits until the batch is
    /// full, or the others are done, for at most 20 ms.
    ///
    /// May be dropped at any time: the deliveries taken are in `batch`.
    pub(crate) async fn take(&self, batch: &mut Vec<T>) -> (BatchOrigin, Option<LateRun<T>>) {
        let mut arriving = self.arriving.lock().await;
        let arriving = &mut *arriving;
        loop {
            // Before the state is read: a change after it is not missed.
            let mut changed = std::pin::pin!(self.aside.wait_for_change());
            changed.as_mut().enable();
            let now = Instant::now();
            let is_open = self.aside.arrivals_due().is_none_or(|arrivals| arrivals <= now);
            let late = self.aside.late_tenants(now);
            let others_arrived = !late.is_empty() && arriving.has_others(&late);
            let has_others = others_arrived || !late.is_empty() && self.aside.has_others(now);
            if has_others
                && !arriving.was_late
                && is_open
                && arriving.has_late(&late)
                && let Some(began) = self.aside.try_begin_late(now)
            {
                arriving.take_late(batch, &late);
                arriving.was_late = true;
                return (BatchOrigin::Arrived, Some(self.guard_late_run(began)));
            }
            // Else only those of late tenants have arrived, which rest.
            let may_come = others_arrived || !has_others || !arriving.has_late(&late);
            if arriving.was_from_aside && is_open && may_come {
                arriving.was_from_aside = false;
                arriving.receive_now(batch, self.next_batch_max(), &late);
                if !batch.is_empty() {
                    arriving.was_late = false;
                    return (BatchOrigin::Arrived, self.begin_late_run(arriving, batch, &late));
                }
            }
            let due = self.aside.take_due(Instant::now(), self.next_batch_max(), has_others);
            if !due.deliveries.is_empty() {
                (arriving.was_from_aside, arriving.was_late) = (true, false);
                batch.extend(due.deliveries);
                return (BatchOrigin::Back, due.late.map(|began| self.guard_late_run(began)));
            }
            let arrival = async {
                if let Some(arrivals) = due.arrivals {
                    tokio::time::sleep_until(arrivals).await;
                }
                arriving.receive(batch, self.next_batch_max(), &late).await
            };
            let wake_up = async {
                match due.next {
                    Some(next) => tokio::time::sleep_until(next).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                _ = arrival => break,
                () = wake_up => {}
                () = changed.as_mut() => {}
            }
        }
        arriving.was_late = false;
        let late = self.aside.late_tenants(Instant::now());
        let run = self.begin_late_run(arriving, batch, &late);
        if run.is_none() {
            self.fill(arriving, batch, &late).await;
        }
        (BatchOrigin::Arrived, run)
    }

    /// Fills a batch with deliveries that arrive until it is full, no other lane is at work, or [`FILL_WAIT`] is over. A small batch is not
    /// filled: it would not pay.
    async fn fill(&self, arriving: &mut ArrivalQueue<T>, batch: &mut Vec<T>, late: &HashSet<IdentityPart>) {
        let max_messages = self.next_batch_max();
        let full_size = self.full_size.min(max_messages);
        if batch.len() <= MAX_SMALL_BATCH || batch.len() >= full_size {
            return;
        }
        let mut busy_lanes = self.busy_lanes.subscribe();
        let others_are_done = async {
            // Never an error: `self` has a sender.
            let _ = busy_lanes.wait_for(|lanes| *lanes == 0).await;
        };
        let enough = async {
            while batch.len() < full_size {
                let room = max_messages - batch.len();
                if arriving.receive(batch, room, late).await == 0 {
                    break;
                }
            }
        };
        tokio::select! {
            () = enough => {}
            () = others_are_done => {}
            () = tokio::time::sleep(FILL_WAIT) => {}
        }
    }

    /// Begins the run of a late tenant's message, and returns its guard; `None` if the batch does not begin with one.
    fn begin_late_run(
        &self,
        arriving: &ArrivalQueue<T>,
        batch: &[T],
        late: &HashSet<IdentityPart>,
    ) -> Option<LateRun<T>> {
        arriving
            .begins_with_late(batch, late)
            .then(|| self.guard_late_run(self.aside.begin_late(Instant::now())))
    }

    /// Creates the guard of a run that began with this time.
    fn guard_late_run(&self, began: Instant) -> LateRun<T> {
        LateRun { aside: Arc::clone(&self.aside), began }
    }

    /// Counts a lane as at work on a batch, until the guard is dropped.
    pub(crate) fn mark_busy(&self) -> BusyLane {
        self.busy_lanes.send_modify(|lanes| *lanes += 1);
        BusyLane(self.busy_lanes.clone())
    }
}

/// Guard of a batch with a message of a late tenant: until it is dropped, no other one runs while others may, for a minute at most.
#[derive(Debug)]
pub(crate) struct LateRun<T> {
    aside: Arc<DeferredDeliveries<T>>,
    began: Instant,
}

impl<T> Drop for LateRun<T> {
    fn drop(&mut self) {
        self.aside.end_late(self.began);
    }
}

/// Guard of a lane at work.
#[derive(Debug)]
pub(crate) struct BusyLane(watch::Sender<usize>);

impl Drop for BusyLane {
    fn drop(&mut self) {
        self.0.send_modify(|lanes| *lanes -= 1);
    }
}

/// Splits a batch into parts of at most [`MAX_TRANSACTION_BYTES`] bytes each (or one message that is larger), in their order.
pub(crate) fn split_by_bytes<T>(batch: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in batch {
        let more = size(&one);
        match parts.last_mut() {
            Some(part) if bytes + more <= MAX_TRANSACTION_BYTES => part.push(one),
            _ => {
                bytes = 0;
                parts.push(vec![one]);
            }
        }
        bytes += more;
    }
    parts
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, poll};

    use super::*;
    use crate::worker::intake::aside::Cause;

    /// Makes arrivals with batches of 500, two lanes, and this number of messages.
    fn with(messages: usize) -> (mpsc::Sender<usize>, Arrivals<usize>) {
        let (sender, arriving) = mpsc::channel(4_000);
        send(&sender, 0..messages);
        (sender, Arrivals::new(arriving, 500, 2_000, 2, (0, 0)))
    }

    fn send(sender: &mpsc::Sender<usize>, messages: std::ops::Range<usize>) {
        for message in messages {
            sender.try_send(message).unwrap();
        }
    }

    /// Returns how many messages a lane takes without waiting; `None` if it waits.
    fn at_once(arrivals: &Arrivals<usize>) -> Option<usize> {
        let mut batch = Vec::new();
        arrivals.take(&mut batch).now_or_never().map(|_| batch.len())
    }

    #[tokio::test]
    async fn nothing_is_waited_for_where_it_would_not_pay() {
        let (_sender, arrivals) = with(300);
        assert_eq!(at_once(&arrivals), Some(300), "no other lane is at work");
        for few in [1, MAX_SMALL_BATCH] {
            let (_sender, arrivals) = with(few);
            let _other = arrivals.mark_busy();
            assert_eq!(at_once(&arrivals), Some(few), "a low rate");
        }
        let (_sender, arrivals) = with(700);
        let _other = arrivals.mark_busy();
        assert_eq!(at_once(&arrivals), Some(500), "a full batch");
    }

    #[tokio::test]
    async fn a_lane_takes_no_more_than_a_slow_handler_does_soon() {
        let (_sender, arrivals) = with(300);
        let pace = Arc::new(Pace::default());
        let arrivals = arrivals.with_pace(Some(Arc::clone(&pace)));
        pace.record(100, Duration::from_secs(5));
        assert_eq!(at_once(&arrivals), Some(5));
        let _other = arrivals.mark_busy();
        assert_eq!(at_once(&arrivals), Some(5));
        pace.record(10_000, Duration::from_secs(1));
        assert_eq!(at_once(&arrivals), None, "it waits for a full batch");
    }

    #[tokio::test]
    async fn a_batch_fills_up_while_another_lane_is_at_work() {
        let (sender, arrivals) = with(300);
        let other = arrivals.mark_busy();
        let mut batch = Vec::new();
        {
            let mut full = std::pin::pin!(arrivals.take(&mut batch));
            assert!(poll!(full.as_mut()).is_pending());
            send(&sender, 0..200);
            assert!(poll!(full).is_ready(), "full");
        }
        assert_eq!(batch.len(), 500);

        send(&sender, 0..150);
        let mut batch = Vec::new();
        {
            let mut done = std::pin::pin!(arrivals.take(&mut batch));
            assert!(poll!(done.as_mut()).is_pending());
            drop(other);
            assert!(poll!(done).is_ready(), "the other lane is done");
        }
        assert_eq!(batch.len(), 150);
    }

    #[tokio::test]
    async fn nobody_waits_long_for_a_lane_that_does_not_end() {
        let (_sender, arrivals) = with(100);
        let _other = arrivals.mark_busy();
        assert_eq!(at_once(&arrivals), None);
        let (sender, arrivals) = with(100);
        let _other = arrivals.mark_busy();
        let mut batch = Vec::new();
        tokio::time::timeout(Duration::from_secs(30), arrivals.take(&mut batch)).await.unwrap();
        assert_eq!(batch.len(), 100);
        drop(sender);
    }

    #[tokio::test]
    async fn a_batch_is_no_fuller_than_the_broker_lets_it_become() {
        let (sender, arriving) = mpsc::channel(400);
        send(&sender, 0..100);
        let arrivals = Arrivals::new(arriving, 500, 400, 2, (0, 0));
        let _other = arrivals.mark_busy();
        assert_eq!(at_once(&arrivals), Some(100), "400 sent ahead are 100 for each lane at work or waiting");
    }

    #[tokio::test]
    async fn what_has_arrived_is_tried_between_any_two_batches_from_aside_that_fail() {
        let (sender, arriving) = mpsc::channel(4_000);
        send(&sender, 100..103);
        let arrivals = Arrivals::new(arriving, 1, 2_000, 1, (0, 0));
        let (now, acme) = (Instant::now(), IdentityPart::new(b"acme").unwrap());
        (0..3).for_each(|number| arrivals.aside.put(now, now, Cause::Held, acme.clone(), number));
        let mut taken = Vec::new();
        for _ in 0..6 {
            let mut batch = Vec::new();
            let (origin, _) = arrivals.take(&mut batch).now_or_never().unwrap();
            taken.extend(batch);
            if origin == BatchOrigin::Back {
                arrivals.aside.pause(Instant::now(), origin);
            }
        }
        assert_eq!(taken, [0, 100, 1, 101, 2, 102]);
    }

    #[tokio::test]
    async fn one_of_a_late_tenant_runs_when_it_has_rested_however_many_others_arrive() {
        let (sender, arriving) = mpsc::channel(4_000);
        send(&sender, 0..3);
        send(&sender, 100..1_000);
        let late = IdentityPart::new(b"late").unwrap();
        let tenant_of = |number: &usize| match number {
            ..100 => IdentityPart::new(b"late").ok(),
            _ => IdentityPart::new(b"acme").ok(),
        };
        let arrivals = Arrivals::new(arriving, 10, 2_000, 1, (1_000, 1_000)).with_turns(
            2_000,
            Box::new(tenant_of),
            |_| 0,
        );
        arrivals.aside.record_out_of_time(Instant::now(), &late, Duration::ZERO);
        for number in 0..3 {
            let mut batch = Vec::new();
            let (_, late_run) = arrivals.take(&mut batch).now_or_never().unwrap();
            assert!(late_run.is_some() && batch == [number], "alone: {batch:?}");
            drop(late_run);
            batch.clear();
            arrivals.take(&mut batch).now_or_never().unwrap();
            assert!(batch.len() == 10 && batch.iter().all(|number| *number >= 100), "{batch:?}");
        }
        let mut batch = Vec::new();
        while arrivals.take(&mut batch).now_or_never().is_some() {}
        send(&sender, 10..11);
        arrivals.aside.record_out_of_time(Instant::now(), &late, Duration::from_secs(30));
        for number in 100..103 {
            let acme = IdentityPart::new(b"acme").unwrap();
            arrivals.aside.put(Instant::now(), Instant::now(), Cause::Held, acme, number);
        }
        let arrivals = Arrivals { max_messages: 1, ..arrivals };
        let mut taken = Vec::new();
        for _ in 0..4 {
            let mut batch = Vec::new();
            arrivals.take(&mut batch).now_or_never().unwrap();
            taken.extend(batch);
        }
        assert_eq!(taken, [100, 101, 102, 10], "those aside are others, too");
    }

    #[tokio::test]
    async fn what_was_taken_is_not_lost_with_the_wait() {
        let (sender, arrivals) = with(300);
        let _other = arrivals.mark_busy();
        let mut batch = Vec::new();
        assert!(arrivals.take(&mut batch).now_or_never().is_none(), "it waits for more");
        assert_eq!(batch, (0..300).collect::<Vec<_>>());
        send(&sender, 300..310);
        assert_eq!(at_once(&arrivals), Some(10), "and the next lane has the next ones");
    }

    #[tokio::test]
    async fn the_end_is_an_empty_batch() {
        let (sender, arrivals) = with(100);
        let _other = arrivals.mark_busy();
        drop(sender);
        assert_eq!(at_once(&arrivals), Some(100), "no more will come");
        assert_eq!(at_once(&arrivals), Some(0));
    }

    #[test]
    fn a_batch_is_split_where_postgresql_could_not_take_it_at_once() {
        let split = |sizes: &[usize]| split_by_bytes(sizes.to_vec(), |size| *size);
        assert_eq!(split(&[1, 2, 3]), [vec![1, 2, 3]]);
        assert_eq!(
            split(&[MAX_TRANSACTION_BYTES, 1, MAX_TRANSACTION_BYTES - 1, 1]),
            [vec![MAX_TRANSACTION_BYTES], vec![1, MAX_TRANSACTION_BYTES - 1], vec![1]]
        );
        assert_eq!(split(&[2 * MAX_TRANSACTION_BYTES, 1]), [vec![2 * MAX_TRANSACTION_BYTES], vec![1]]);
        assert_eq!(split(&[]), Vec::<Vec<usize>>::new());
    }
}
