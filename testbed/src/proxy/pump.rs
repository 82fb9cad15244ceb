//! One way of one connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::frames::{Frame, Frames};
use super::{Direction, Mode, OneShot, Shared};

/// The connection is to be reset.
#[derive(Debug)]
pub(super) struct Cut;

pub(super) struct Pump<'a> {
    direction: Direction,
    shared: &'a Shared,
    /// The next bytes of the server are lost, and the connection with them.
    swallow: &'a AtomicBool,
    frames: Frames,
}

impl<'a> Pump<'a> {
    pub(super) fn new(direction: Direction, shared: &'a Shared, swallow: &'a AtomicBool) -> Self {
        Self { direction, shared, swallow, frames: Frames::new(shared.protocol, direction) }
    }

    /// Forwards until the reader's end.
    pub(super) async fn run(
        mut self,
        reader: &mut OwnedReadHalf,
        writer: &mut OwnedWriteHalf,
    ) -> Result<(), Cut> {
        let mut mode = self.shared.mode.subscribe();
        let mut half_close = self.shared.half_close.subscribe();
        let mut forget = self.shared.forget.subscribe();
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let read = tokio::select! {
                read = reader.read(&mut buffer) => read.map_err(|_| Cut)?,
                _ = forget.changed() => {
                    self.forget(reader, &mut buffer).await;
                    // Until somebody cuts it.
                    std::future::pending().await
                }
                _ = half_close.changed(), if self.direction == Direction::Down => 0,
            };
            if read == 0 {
                // A server that is gone already has nothing left to be told.
                let _ = writer.shutdown().await;
                return Ok(());
            }
            // Read before, or meanwhile: it waits.
            let _ = mode.wait_for(|mode| *mode != Mode::BlackHole).await;
            let now = *mode.borrow();
            let bytes = &mut buffer[..read];
            match now {
                Mode::Delay(pause) => tokio::time::sleep(pause).await,
                Mode::Garble if self.direction == Direction::Down => {
                    // Neither digits nor line ends: a broken answer, never another valid one.
                    bytes.iter_mut().for_each(|byte| *byte |= 0x80);
                }
                _ => {}
            }
            let pieces = self.frames.push(bytes);
            for frame in pieces {
                self.forward_frame(&frame, now, writer).await?;
            }
        }
    }

    /// Reads, so that it is known that something was sent, and passes on nothing, not even the end.
    async fn forget(&self, reader: &mut OwnedReadHalf, buffer: &mut [u8]) {
        while let Ok(read @ 1..) = reader.read(buffer).await {
            self.shared.forgotten.fetch_add(read as u64, Ordering::Relaxed);
        }
    }

    async fn forward_frame(&self, frame: &Frame, mode: Mode, writer: &mut OwnedWriteHalf) -> Result<(), Cut> {
        match self.direction {
            Direction::Up => {
                if frame.is_commit() {
                    if self.shared.strike(OneShot::CutBeforeCommit) {
                        return Err(Cut);
                    }
                    if self.shared.strike(OneShot::LoseCommitReply) {
                        self.swallow.store(true, Ordering::SeqCst);
                    }
                }
                if frame.is_method(60, 80) && self.shared.strike(OneShot::LoseAck) {
                    return Err(Cut);
                }
                if frame.is_method(60, 40) && self.shared.strike(OneShot::LosePublish) {
                    return Err(Cut);
                }
            }
            Direction::Down => {
                if self.swallow.load(Ordering::SeqCst) {
                    return Err(Cut);
                }
                if frame.is_method(60, 80) && self.shared.strike(OneShot::LoseConfirm) {
                    return Err(Cut);
                }
            }
        }
        self.write(&frame.bytes, mode, writer).await
    }

    async fn write(&self, bytes: &[u8], mode: Mode, writer: &mut OwnedWriteHalf) -> Result<(), Cut> {
        match mode {
            Mode::Throttle(rate) => {
                let rate = rate.max(1);
                for piece in bytes.chunks(usize::try_from(rate / 20).unwrap_or(1).max(1)) {
                    writer.write_all(piece).await.map_err(|_| Cut)?;
                    // While throttled; when the mode changes, the rest goes at once.
                    if matches!(*self.shared.mode.borrow(), Mode::Throttle(_)) {
                        let wait = piece.len() as f64 / f64::from(rate);
                        tokio::time::sleep(Duration::from_secs_f64(wait)).await;
                    }
                }
                Ok(())
            }
            Mode::CutAfter(direction, _) if direction == self.direction => {
                let length = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
                let left = self.shared.budget.fetch_sub(length, Ordering::Relaxed);
                if left >= length {
                    return writer.write_all(bytes).await.map_err(|_| Cut);
                }
                let part = usize::try_from(left.max(0)).unwrap_or(0).min(bytes.len());
                let _ = writer.write_all(&bytes[..part]).await;
                // The torn piece must be on its way before the reset, which would discard what waits in the socket.
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.shared.struck.fetch_add(1, Ordering::Relaxed);
                self.shared.cut_all();
                Err(Cut)
            }
            _ => writer.write_all(bytes).await.map_err(|_| Cut),
        }
    }
}
