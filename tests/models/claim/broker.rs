//! What the broker is told, and what it does with that.

use oncely_core::settlement::{Ack, Settlement};

use super::policy::Flaw;
use super::steps::Claims;
use super::world::{Delivery, Lane, Phase, Queued, State, Why};

impl Claims {
    /// What a process had goes back to the queue.
    pub fn give_back(&self, state: &mut State, p: usize, lanes: bool) {
        let process = &mut state.processes[p];
        for (_, queued) in std::mem::take(&mut process.unacked) {
            let returned = queued.returned + 1;
            if returned > self.delivery_limit {
                state.dead.push((queued.id, Why::Limit));
            } else {
                state.ready.push(Queued { redelivered: true, returned, ..queued });
            }
        }
        state.ready.sort_unstable();
        state.dead.sort_unstable();
        process.next_tag = 1;
        process.intake.clear();
        process.settlement = Settlement::new(self.prefetch());
        if lanes {
            process.lanes = vec![Lane { todo: Vec::new(), phase: Phase::Idle }; self.lanes];
        }
        for delivery in process.in_hand() {
            delivery.stale = true;
            if self.flaw != Flaw::StaleAck {
                delivery.tag = 0;
            }
        }
    }

    /// Tells the broker. On a channel that is gone nothing is sent.
    pub fn acknowledge(&self, state: &mut State, p: usize, deliveries: &[Delivery]) {
        let process = &mut state.processes[p];
        let tags = deliveries
            .iter()
            .filter(|delivery| !delivery.stale || self.flaw == Flaw::StaleAck)
            .map(|delivery| u64::from(delivery.tag));
        let acks = match self.flaw {
            Flaw::AckOverGap => tags.max().map(Ack::UpTo).into_iter().collect(),
            // Straight to whatever channel there is.
            Flaw::StaleAck => tags.map(Ack::One).collect(),
            _ => {
                process.settlement.mark(tags);
                process.settlement.take_acks()
            }
        };
        for ack in acks {
            let there = take(&mut process.unacked, ack);
            state.acked_twice |= !there && self.flaw != Flaw::StaleAck;
        }
    }
}

/// The broker forgets what is acknowledged. Was it outstanding?
pub fn take(unacked: &mut Vec<(u8, Queued)>, ack: Ack) -> bool {
    let before = unacked.len();
    unacked.retain(|(tag, _)| match ack {
        Ack::UpTo(last) => u64::from(*tag) > last,
        Ack::One(one) => u64::from(*tag) != one,
    });
    unacked.len() < before
}
