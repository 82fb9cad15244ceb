//! The ways between processes and servers.

use std::time::Duration;

use anyhow::Context as _;

use super::{Fault, Kind};
use crate::Arena;
use crate::arena::Server;
use crate::proxy::{Direction, Mode, OneShot, Proxy};

impl Arena {
    /// The way that the fault strikes. Relays take nothing from the broker, so they have nothing to acknowledge.
    fn struck_link(&self, fault: &Fault) -> anyhow::Result<&Proxy> {
        let server = match fault.kind {
            Kind::Cut(server)
            | Kind::BlackHole(server)
            | Kind::Slow(server)
            | Kind::Throttle(server)
            | Kind::HalfClose(server)
            | Kind::Refuse(server)
            | Kind::Forget(server)
            | Kind::TearUp(server)
            | Kind::TearDown(server) => server,
            Kind::LoseCommitReply | Kind::CutBeforeCommit => Server::Postgres,
            Kind::Garble => Server::Redis,
            _ => Server::RabbitMq,
        };
        let relays = if fault.kind == Kind::LoseAck { 0 } else { self.relays.len() };
        let number = fault.target % (self.workers.len() + relays).max(1);
        let member = self.workers.iter().chain(&self.relays).nth(number);
        member.context("no such process")?.link(server).context("no proxy on the way")
    }

    pub(super) fn inject_network(&mut self, fault: &Fault) -> anyhow::Result<()> {
        let link = self.struck_link(fault)?;
        // Different from one fault to the next, and the same from one run to the next.
        let spread = |from: u64, to: u64| from + fault.hold.as_micros() as u64 % (to - from);
        match fault.kind {
            Kind::Cut(_) => link.cut(),
            Kind::BlackHole(_) => link.set(Mode::BlackHole),
            Kind::Slow(_) => link.set(Mode::Delay(Duration::from_millis(spread(5, 100)))),
            Kind::Throttle(_) => link.set(Mode::Throttle(u32::try_from(spread(5_000, 50_000))?)),
            Kind::HalfClose(_) => link.half_close(),
            Kind::Forget(_) => link.forget(),
            Kind::Refuse(_) => {
                link.set(Mode::Refuse);
                link.cut();
            }
            Kind::TearUp(_) => {
                link.set(Mode::CutAfter(Direction::Up, u32::try_from(fault.target % 7_919 + 1)?));
            }
            Kind::TearDown(_) => {
                link.set(Mode::CutAfter(Direction::Down, u32::try_from(fault.target % 7_919 + 1)?));
            }
            Kind::LoseCommitReply => link.arm(Some(OneShot::LoseCommitReply)),
            Kind::CutBeforeCommit => link.arm(Some(OneShot::CutBeforeCommit)),
            Kind::LoseAck => link.arm(Some(OneShot::LoseAck)),
            Kind::LoseConfirm => link.arm(Some(OneShot::LoseConfirm)),
            Kind::LosePublish => link.arm(Some(OneShot::LosePublish)),
            Kind::Garble => link.set(Mode::Garble),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn heal_network(&mut self, fault: &Fault) -> anyhow::Result<()> {
        let link = self.struck_link(fault)?;
        // A silence ends in one of two ways: all arrives late, or nothing does.
        if matches!(fault.kind, Kind::BlackHole(_)) && fault.target % 2 == 1 {
            link.cut();
        }
        link.set(Mode::Pass);
        link.arm(None);
        if matches!(fault.kind, Kind::HalfClose(_)) {
            link.cut();
        }
        Ok(())
    }
}
