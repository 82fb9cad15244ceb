//! A bare Debian, to install something in: nothing of this machine is in it but its kernel and its network.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::files::Scratch;
use crate::process::Process;
use crate::root::Root;

/// `sh -c SHUT_IN sh ROOT PROGRAM …`, in a mount namespace of its own: nothing can be written but two folders that go with it.
const SHUT_IN: &str = r#"set -e
root=$1
shift
mount --bind "$root" "$root"
for folder in /proc /dev; do mount --rbind "$folder" "$root$folder"; done
for folder in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root$folder"; done
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@""#;

/// A copy of Debian's smallest base system; gone with this value.
#[derive(Debug)]
pub struct BareRoot {
    scratch: Scratch,
}

/// What runs in a root as a service manager runs it.
#[derive(Clone, Debug)]
pub struct Service {
    /// Program and arguments.
    pub command: Vec<String>,
    /// All of its environment.
    pub environment: Vec<(String, String)>,
    /// Whom it runs as, without any capability and without a way to more.
    pub user: u32,
}

impl BareRoot {
    /// The release that it is of.
    pub const RELEASE: &str = "bookworm";

    /// Copies one that was made once (a minute), as root.
    pub fn copy() -> anyhow::Result<Self> {
        let made = Root::bare(Self::RELEASE);
        made.make()?;
        let root = Self { scratch: Scratch::new("bare")? };
        let mut copied = Command::new("cp");
        copied.args(["--archive", "--no-target-directory"]).arg(made.folder()).arg(root.path());
        let status = copied.status().context("cannot run cp")?;
        anyhow::ensure!(status.success(), "a bare Debian could not be copied: {status}");
        Ok(root)
    }

    /// Where its `/` is.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    /// Where a path of it is for this process.
    #[must_use]
    pub fn outside(&self, path: &Path) -> PathBuf {
        self.path().join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Runs a command of it as root, to its end; fails with its words.
    pub fn run(&self, command: &[impl AsRef<OsStr>]) -> anyhow::Result<()> {
        let output = Command::new("chroot")
            .arg(self.path())
            .args(command)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .output()
            .context("cannot run chroot")?;
        let words: Vec<_> = command.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}: {}\n{said}", words.join(" "), output.status);
        Ok(())
    }

    /// Starts a service in it, for which the root is read-only; what it prints is appended to `log`.
    pub fn start(&self, service: &Service, log: &Path) -> anyhow::Result<Process> {
        let root = self.path().display().to_string();
        let user = service.user.to_string();
        let mut words = vec!["--mount", "--", "sh", "-c", SHUT_IN, "sh", &root];
        // The kernel forgets with each change of the user that it dies with us, so it is said again.
        words.extend([
            "setpriv",
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "--pdeathsig",
            "KILL",
        ]);
        words.extend(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--", "env", "-i"]);
        let environment: Vec<String> =
            service.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(environment.iter().map(String::as_str));
        words.extend(service.command.iter().map(String::as_str));
        Process::start(Path::new("unshare"), &words, &[], log)
    }
}
