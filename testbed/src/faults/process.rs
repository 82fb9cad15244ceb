//! Workers and relays: killed, frozen, told to end.

use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use super::{Fault, Kind};
use crate::{Arena, Member};

impl Arena {
    fn struck_member(&mut self, fault: &Fault) -> anyhow::Result<&mut Member> {
        let members = match fault.kind {
            Kind::KillRelay | Kind::FreezeRelay | Kind::TermRelay => &mut self.relays,
            _ => &mut self.workers,
        };
        let count = members.len().max(1);
        members.get_mut(fault.target % count).context("no such process")
    }

    pub(super) async fn inject_process(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillWorkers => {
                self.note_deaths(self.workers.len());
                self.workers.iter_mut().try_for_each(|worker| worker.process.kill())
            }
            Kind::FreezeWorker | Kind::FreezeRelay => self.struck_member(fault)?.process.signal(Signal::STOP),
            Kind::TermWorker | Kind::TermRelay => {
                let member = self.struck_member(fault)?;
                let name = member.name.clone();
                let ended = member.process.terminate(Duration::from_secs(40)).await;
                match ended {
                    Ok(status) if status.success() => {}
                    Ok(status) => self.exits.push(format!("{name} after SIGTERM: {status}")),
                    Err(error) => self.exits.push(format!("{name} after SIGTERM: {error:#}")),
                }
                Ok(())
            }
            kind => {
                self.note_deaths(usize::from(kind == Kind::KillWorker));
                self.struck_member(fault)?.process.kill()
            }
        }
    }

    pub(super) async fn heal_process(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillWorkers => self.workers.iter_mut().try_for_each(|worker| worker.process.start_again()),
            Kind::FreezeWorker | Kind::FreezeRelay => self.struck_member(fault)?.process.signal(Signal::CONT),
            _ => self.struck_member(fault)?.process.start_again(),
        }
    }
}

/// Signals a process and all that it has started.
pub(super) fn signal_tree(root: u32, signal: Signal) -> anyhow::Result<()> {
    let mut all = vec![root];
    let mut seen = 0;
    while let Some(parent) = all.get(seen).copied() {
        all.extend(children(parent)?);
        seen += 1;
    }
    for pid in all {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
        // It may have ended meanwhile.
        let _ = kill_process(pid, signal);
    }
    Ok(())
}

/// Processes that a process has started, by the kernel's books.
pub(super) fn children(parent: u32) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // "pid (name) state parent …"; a name may hold blanks and brackets.
        let of = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if of == Some(parent) {
            found.push(pid);
        }
    }
    Ok(found)
}
