//! Where the lanes of a consumer take their batches from.

use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};

use super::forecast::SMALL;

/// Longest wait of a lane for a fuller batch: about what a full one takes on a machine of two cores. A slow handler holds up its
/// neighbours no longer than that.
const PATIENCE: Duration = Duration::from_millis(20);

/// Deliveries on their way to the lanes, taken by one lane at a time.
#[derive(Debug)]
pub(crate) struct Intake<T> {
    arriving: Mutex<mpsc::Receiver<T>>,
    /// Lanes whose batch is not decided yet.
    at_work: watch::Sender<usize>,
    /// Most messages of a batch.
    most: usize,
    /// From so many on, a batch is not waited for: the broker may send no more as long as the other lanes hold theirs.
    full: usize,
}

impl<T> Intake<T> {
    /// For batches of up to `most` messages, where the broker sends `prefetch` messages ahead to so many `lanes`.
    pub(crate) fn new(arriving: mpsc::Receiver<T>, most: usize, prefetch: usize, lanes: usize) -> Self {
        let full = most.min(prefetch / (2 * lanes).max(1));
        Self { arriving: Mutex::new(arriving), at_work: watch::Sender::new(0), most, full }
    }

    /// The next batch, into `batch`, which is empty; it stays empty when there will be none any more.
    ///
    /// At a low rate a batch is what is there, without waiting. Where more than a small batch has come while other lanes are at
    /// work, the processors have enough to do, and a batch taken early would only cost one commit more: the lane waits until
    /// the batch is full, or the others are done, for at most 20 ms.
    ///
    /// May be dropped at any time: what was taken is in `batch`.
    pub(crate) async fn take(&self, batch: &mut Vec<T>) {
        let mut arriving = self.arriving.lock().await;
        arriving.recv_many(batch, self.most).await;
        if batch.len() <= SMALL || batch.len() >= self.full {
            return;
        }
        let mut at_work = self.at_work.subscribe();
        let others_are_done = async {
            // Never an error: the sender is ours.
            let _ = at_work.wait_for(|lanes| *lanes == 0).await;
        };
        let enough = async {
            while batch.len() < self.full {
                let room = self.most - batch.len();
                if arriving.recv_many(batch, room).await == 0 {
                    break;
                }
            }
        };
        tokio::select! {
            () = enough => {}
            () = others_are_done => {}
            () = tokio::time::sleep(PATIENCE) => {}
        }
    }

    /// Says that a lane is at work on a batch, until the guard is dropped.
    pub(crate) fn at_work(&self) -> AtWork {
        self.at_work.send_modify(|lanes| *lanes += 1);
        AtWork(self.at_work.clone())
    }
}

/// A lane at work.
#[derive(Debug)]
pub(crate) struct AtWork(watch::Sender<usize>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.send_modify(|lanes| *lanes -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    /// With 500 a batch, two lanes, and so many messages there.
    fn with(messages: usize) -> (mpsc::Sender<usize>, Intake<usize>) {
        let (sender, arriving) = mpsc::channel(4_000);
        send(&sender, 0..messages);
        (sender, Intake::new(arriving, 500, 2_000, 2))
    }

    fn send(sender: &mpsc::Sender<usize>, messages: std::ops::Range<usize>) {
        for message in messages {
            sender.try_send(message).unwrap();
        }
    }

    /// What a lane takes, and how long it waits for it.
    async fn taken(intake: &Intake<usize>) -> (usize, Duration) {
        let (mut batch, start) = (Vec::new(), Instant::now());
        intake.take(&mut batch).await;
        (batch.len(), start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_waited_for_where_it_would_not_pay() {
        let (_sender, intake) = with(300);
        assert_eq!(taken(&intake).await, (300, Duration::ZERO), "no other lane is at work");
        for few in [1, SMALL] {
            let (_sender, intake) = with(few);
            let _other = intake.at_work();
            assert_eq!(taken(&intake).await, (few, Duration::ZERO), "a low rate");
        }
        let (_sender, intake) = with(700);
        let _other = intake.at_work();
        assert_eq!(taken(&intake).await, (500, Duration::ZERO), "a full batch");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_fills_up_while_another_lane_is_at_work() {
        let (sender, intake) = with(300);
        let other = intake.at_work();
        let arrival = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            send(&sender, 0..200);
        };
        let (taken_then, ()) = tokio::join!(taken(&intake), arrival);
        assert_eq!(taken_then, (500, Duration::from_millis(5)), "full");

        send(&sender, 0..150);
        let end = async {
            tokio::time::sleep(Duration::from_millis(7)).await;
            drop(other);
        };
        let (taken_then, ()) = tokio::join!(taken(&intake), end);
        assert_eq!(taken_then, (150, Duration::from_millis(7)), "the other lane is done");

        let _other = intake.at_work();
        send(&sender, 0..100);
        let (messages, waited) = taken(&intake).await;
        assert_eq!(messages, 100);
        assert!(waited >= PATIENCE && waited < 2 * PATIENCE, "{waited:?}: whatever the other lane does");
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_is_no_fuller_than_the_broker_lets_it_become() {
        let (sender, arriving) = mpsc::channel(400);
        send(&sender, 0..100);
        let intake = Intake::new(arriving, 500, 400, 2);
        let _other = intake.at_work();
        assert_eq!(
            taken(&intake).await,
            (100, Duration::ZERO),
            "400 sent ahead are 100 for each lane at work or waiting"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_taken_is_not_lost_with_the_wait() {
        let (sender, intake) = with(300);
        let _other = intake.at_work();
        let mut batch = Vec::new();
        let waiting = timeout(Duration::from_millis(3), intake.take(&mut batch)).await;
        assert!(waiting.is_err(), "it waits for more");
        assert_eq!(batch, (0..300).collect::<Vec<_>>());
        send(&sender, 300..310);
        assert_eq!(taken(&intake).await.0, 10, "and the next lane has the next ones");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_is_an_empty_batch() {
        let (sender, intake) = with(100);
        let _other = intake.at_work();
        drop(sender);
        assert_eq!(taken(&intake).await, (100, Duration::ZERO), "no more will come");
        assert_eq!(taken(&intake).await.0, 0);
    }
}
