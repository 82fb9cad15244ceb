//! Files with secrets: another user who can read or change one could impersonate any user of the console.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A file's version: it differs after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion([u64; 3], [i64; 4]);

impl FileVersion {
    /// Reads the version of a file; `None` if the file is not accessible.
    pub(super) fn read(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|data| Self::from(&data))
    }
}

impl From<&Metadata> for FileVersion {
    fn from(data: &Metadata) -> Self {
        Self(
            [data.dev(), data.ino(), data.size()],
            [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()],
        )
    }
}

/// Reads a file that only its owner can read or change.
///
/// # Errors
/// If it can't be read, or another user has access to it; the text has none of the file's content.
pub(super) fn read(path: &Path) -> Result<(FileVersion, String), String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    // Checks the open file, not the path, which may lead elsewhere by now.
    let data = file.metadata().map_err(unreadable)?;
    check_permissions(data.mode(), data.uid(), rustix::process::geteuid().as_raw())?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file, &mut text).map_err(unreadable)?;
    Ok((FileVersion::from(&data), text))
}

/// Refuses a file that users outside its group can access, its group can change, or another user owns.
fn check_permissions(mode: u32, owner: u32, own: u32) -> Result<(), String> {
    if mode & 0o007 != 0 {
        return Err("is accessible to all users: run chmod o= on it".to_owned());
    }
    if mode & 0o020 != 0 {
        return Err("is writable by its group: run chmod g-w on it".to_owned());
    }
    if owner != 0 && owner != own {
        return Err(format!("belongs to user {owner}: its owner must be root or the console's user"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_may_own_read_or_change_it() {
        assert!(check_permissions(0o100_600, 7, 7).is_ok() && check_permissions(0o100_640, 0, 7).is_ok());
        assert!(check_permissions(0o100_600, 8, 7).unwrap_err().contains("belongs to user 8"));
        for mode in [0o604, 0o602, 0o660, 0o620] {
            assert!(check_permissions(mode, 7, 7).is_err(), "{mode:o}");
        }
    }
}
