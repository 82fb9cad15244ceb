//! The root of another Debian release: made once by debootstrap, entered by each server that is started from it, or bare, to be copied
//! and installed into ([`crate::BareRoot`]).
//!
//! A server runs in a mount namespace of its own (unshare(1)), with the scratch folders at their own paths, and ends up as a
//! child like any other: the same process id, the same signals, the same network. What was mounted goes with it, however it
//! ends, so a root can be removed at any time and nothing of this machine with it.

use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use anyhow::Context as _;

use crate::life::{Life, NOBODY, User};
use crate::{Generation, apt, files};

/// What the root of the servers holds beside Debian's smallest base system.
const SERVERS: [&str; 4] = ["postgresql", "rabbitmq-server", "valkey-server", "pgbouncer"];

/// Written when a root is whole: what it holds.
const STAMP: &str = "etc/oncely-testbed";

/// `sh -c ENTER sh ROOT SHARED PROGRAM …`, in a mount namespace of its own.
const ENTER: &str = r#"set -e
root=$1 shared=$2
shift 2
for folder in /proc /sys /dev; do mount --rbind "$folder" "$root$folder"; done
mkdir -p "$root$shared"
mount --rbind "$shared" "$root$shared"
exec chroot "$root" "$@""#;

/// The root of a Debian release, whether it is made already or not.
#[derive(Debug)]
pub(crate) struct Root {
    release: &'static str,
    /// What it holds beside Debian's smallest base system.
    packages: &'static [&'static str],
    folder: PathBuf,
}

impl Generation {
    /// Sees to it that its programs are there where they live in a root of their own; that can take minutes, once. This machine's
    /// own are seen to when they are started.
    ///
    /// # Errors
    /// Where they can't be installed: says why and what helps.
    pub fn prepare(self) -> anyhow::Result<()> {
        match Root::of(self) {
            Some(root) => root.make(),
            None => Ok(()),
        }
    }
}

impl Root {
    /// The root that the servers of this process come from, if it is not this machine's own.
    pub(crate) fn current() -> anyhow::Result<Option<&'static Self>> {
        Ok(Self::of(Generation::current()?))
    }

    /// The root of a generation, if it has one.
    pub(crate) fn of(generation: Generation) -> Option<&'static Self> {
        static TRIXIE: OnceLock<Root> = OnceLock::new();
        static FORKY: OnceLock<Root> = OnceLock::new();
        let root = match generation {
            Generation::Host => return None,
            Generation::Trixie => &TRIXIE,
            Generation::Forky => &FORKY,
        };
        let release = generation.name();
        Some(root.get_or_init(|| Self {
            release,
            packages: &SERVERS,
            folder: cached("servers").join(release),
        }))
    }

    /// Debian's smallest base system, with nothing of ours and of nobody else.
    pub(crate) fn bare(release: &'static str) -> Self {
        Self { release, packages: &[], folder: cached("bare").join(release) }
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it is, for a person.
    fn what(&self) -> String {
        match self.packages {
            [] => format!("a bare Debian {}", self.release),
            _ => format!("the servers of Debian {}", self.release),
        }
    }

    /// Where a path of this root is for this process.
    pub(crate) fn outside(&self, path: &Path) -> PathBuf {
        self.folder.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A command that runs `program` inside.
    pub(crate) fn enter(&self, program: &Path, user: User, life: Life) -> Command {
        let mut command = life.command(Path::new("unshare"));
        command
            .args(["--mount", "--", "sh", "-c", ENTER, "sh"])
            .arg(&self.folder)
            .arg(files::scratch_folder());
        if user == User::Nobody {
            let nobody = NOBODY.to_string();
            command.args(["setpriv", "--reuid", &nobody, "--regid", &nobody, "--clear-groups"]);
            if life == Life::Bound {
                // The kernel forgets it with each change of the user (prctl(2), PR_SET_PDEATHSIG).
                command.args(["--pdeathsig", "KILL"]);
            }
            command.arg("--");
        }
        command.arg(program);
        command
    }

    /// Makes it, unless it is there: one to three minutes, once.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        let what = self.what();
        // What else helps: a bare one has nothing that could do for it.
        let instead = if self.packages.is_empty() { "" } else { ", or leave --servers out" };
        anyhow::ensure!(
            apt::is_root(),
            "{what} is a root of its own (debootstrap, chroot): run this as root{instead}"
        );
        if self.is_whole() {
            return Ok(());
        }
        let parent = self.folder.parent().context("a root has a parent")?;
        std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
        // Held until the end of this function: others wait for what is being made.
        let lock = std::fs::File::create(self.folder.with_extension("lock"))?;
        lock.lock()?;
        if self.is_whole() {
            return Ok(());
        }
        let missing = || {
            apt::in_path("debootstrap")
                .is_none()
                .then(|| ("debootstrap".to_owned(), vec!["debootstrap", "debian-archive-keyring"]))
        };
        apt::install(missing).map_err(|failure| {
            let (missing, why) = (failure.missing, failure.why);
            anyhow::anyhow!("{what} needs {missing}, which is not there: {why}. Install it yourself{instead}")
        })?;
        let size = if self.packages.is_empty() { "200 MB" } else { "700 MB" };
        eprintln!("{what} not found: installing it into {} ({size}, once)", self.folder.display());
        // Under another name until it is whole: what was broken off is no root.
        let part = Self {
            release: self.release,
            packages: self.packages,
            folder: self.folder.with_extension("part"),
        };
        for folder in [&part.folder, &self.folder] {
            if folder.exists() {
                std::fs::remove_dir_all(folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
        }
        part.fill().with_context(|| format!("{what} could not be installed"))?;
        std::fs::rename(&part.folder, &self.folder)?;
        Ok(())
    }

    fn is_whole(&self) -> bool {
        std::fs::read_to_string(self.folder.join(STAMP)).is_ok_and(|found| found == self.stamp())
    }

    fn fill(&self) -> anyhow::Result<()> {
        // debootstrap mounts things, and leaves them where it is killed; here they go with it.
        let mut debootstrap = Command::new("unshare");
        debootstrap
            .args(["--mount", "--", "debootstrap", "--variant=minbase", self.release])
            .arg(&self.folder);
        if let Some(mirror) = mirror() {
            // An older debootstrap does not know the names of newer releases, which all have this script.
            debootstrap.args([mirror.as_str(), "/usr/share/debootstrap/scripts/sid"]);
        }
        run("the base system (debootstrap)", debootstrap)?;
        if !self.packages.is_empty() {
            self.install()?;
        }
        std::fs::write(self.folder.join(STAMP), self.stamp())?;
        Ok(())
    }

    fn install(&self) -> anyhow::Result<()> {
        // No service is started, no cluster is made.
        let policy = self.folder.join("usr/sbin/policy-rc.d");
        std::fs::write(&policy, "#!/bin/sh\nexit 101\n")?;
        std::fs::set_permissions(policy, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        std::fs::create_dir_all(self.folder.join("etc/postgresql-common"))?;
        std::fs::write(
            self.folder.join("etc/postgresql-common/createcluster.conf"),
            "create_main_cluster = false\n",
        )?;
        // Lists of a release in the making expire after a week, and a mirror may be older.
        run("package lists", self.apt_get(&["update", "-q", "-o", "Acquire::Check-Valid-Until=false"]))?;
        let install = [&["install", "-y", "-q", "--no-install-recommends"], self.packages].concat();
        run("the servers", self.apt_get(&install))?;
        run("clean", self.apt_get(&["clean"]))
    }

    fn stamp(&self) -> String {
        self.packages.join("\n") + "\n"
    }

    fn apt_get(&self, arguments: &[&str]) -> Command {
        let mut command = self.enter(Path::new("/usr/bin/apt-get"), User::Same, Life::Free);
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command
    }
}

/// A folder in the user's cache, where the next clone finds it, too.
fn cached(name: &str) -> PathBuf {
    files::cache().unwrap_or_else(|| std::env::temp_dir().join("oncely")).join(name)
}

/// Where this machine's own apt gets Debian from; without an answer debootstrap knows a place itself.
fn mirror() -> Option<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| line.strip_prefix("Debian "))
        .find(|uri| ["http:", "https:", "file:"].iter().any(|scheme| uri.starts_with(scheme)))
        .map(str::to_owned)
}

/// Runs one step; on a terminal its last line shows how far it is. Fails with its last words.
fn run(what: &str, mut command: Command) -> anyhow::Result<()> {
    const LAST: usize = 20;
    eprintln!("  {what}");
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = command.spawn().with_context(|| format!("{what}: cannot run unshare (util-linux)"))?;
    // With it our end of the pipe: else it would never be at its end.
    drop(command);
    let is_terminal = std::io::stderr().is_terminal();
    let mut last = std::collections::VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line: String =
            String::from_utf8_lossy(&line?).chars().filter(|letter| !letter.is_control()).collect();
        if is_terminal {
            eprint!("\r\x1b[2K    {}", line.chars().take(100).collect::<String>());
        }
        last.push_back(line);
        if last.len() > LAST {
            last.pop_front();
        }
    }
    if is_terminal {
        eprint!("\r\x1b[2K");
    }
    let status = child.wait()?;
    anyhow::ensure!(status.success(), "{what}: {status}\n{}", Vec::from(last).join("\n"));
    Ok(())
}
