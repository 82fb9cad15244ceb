//! Scratch folders that outlive a crash of this process by one run at most, and the folder of what stays.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

const PREFIX: &str = "oncely-testbed-";

/// Names the variable that says where scratch folders are made, instead of the system's folder for temporary files.
pub const SCRATCH: &str = "TESTBED_SCRATCH";

/// Linux keeps files of this folder in memory.
const MEMORY: &str = "/dev/shm";

/// Bytes that a whole test suite leaves in scratch folders, doubled.
const ROOM: u64 = 12 << 30;

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Returns the folder in which scratch folders are made.
pub(crate) fn scratch_folder() -> PathBuf {
    let set = || std::env::var_os(SCRATCH).filter(|value| !value.is_empty()).map(PathBuf::from);
    CHOSEN.get().cloned().or_else(set).unwrap_or_else(std::env::temp_dir)
}

/// Makes scratch folders in memory from now on, where enough of it is free and [`SCRATCH`] names no other folder: on a disk, the thousands
/// of small files of a test's database take longer to be made and removed than the test. What `kill -9` leaves in memory stays, as on a
/// disk. Returns the folder, for the variable [`SCRATCH`] of child processes.
pub fn keep_scratch_in_memory() -> PathBuf {
    let has_room = rustix::fs::statvfs(MEMORY)
        .is_ok_and(|memory| memory.f_bavail.saturating_mul(memory.f_frsize) >= ROOM)
        && free_memory().is_some_and(|free| free >= ROOM);
    if has_room && std::env::var_os(SCRATCH).is_none() {
        return CHOSEN.get_or_init(|| PathBuf::from(MEMORY)).clone();
    }
    scratch_folder()
}

/// Returns the bytes that new processes can have without swapping (proc_meminfo(5)).
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.strip_suffix("kB")?;
    Some(kilobytes.trim().parse::<u64>().ok()?.saturating_mul(1 << 10))
}

/// Waits until no other process of this user holds the lock of this name; it is held until the returned file is dropped.
pub(crate) fn lock_exclusively(name: &str) -> anyhow::Result<File> {
    let user = rustix::process::getuid().as_raw();
    let path = std::env::temp_dir().join(format!("oncely-{user}-{name}.lock"));
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.with_context(|| format!("cannot open {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// A folder for a server's files, removed on drop. A folder left by a killed process goes when the next one starts.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes an empty folder that any user may enter (PostgreSQL refuses to run as root, so it runs as nobody).
    pub fn new(name: &str) -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        sweep();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = scratch_folder().join(format!("{PREFIX}{}-{number}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A server that is just dying may still write; what stays behind is swept by the next run.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The user's cache folder for what is installed once; none where the environment names no home.
#[must_use]
pub fn cache() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).map(|folder| folder.join("oncely"))
}

/// Removes the folders of processes that no longer run.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(scratch_folder()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next())
        else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
