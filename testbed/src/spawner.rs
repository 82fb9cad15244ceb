//! Starts child processes from one thread that lives as long as this process.
//!
//! The kernel sends a child its parent-death signal when the *thread* that forked it ends, not the process
//! (prctl(2), PR_SET_PDEATHSIG). A server started from a test's thread would die with that test.

use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};

type Job = (Command, Sender<io::Result<Child>>);

/// Starts `command` so that it is killed when this process ends, however it ends.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                // The receiver is waiting in `spawn` below; if it is gone, nobody wants the child either.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = mpsc::channel();
    spawner.send((command, reply)).map_err(|_| io::Error::other("the spawner thread has ended"))?;
    answer.recv().map_err(|_| io::Error::other("the spawner thread has ended"))?
}

/// A command for `program` that dies with this process, where `setpriv` (util-linux) is at hand.
pub(crate) fn bound_command(program: &std::path::Path) -> Command {
    if std::path::Path::new("/usr/bin/setpriv").exists() {
        let mut command = Command::new("/usr/bin/setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    }
}
