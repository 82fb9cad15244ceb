//! Files with secrets: whoever else could read or change one would be whom they like.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A version of a file: another one has another stamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp([u64; 3], [i64; 4]);

impl Stamp {
    pub(super) fn of(path: &Path) -> Option<Self> {
        std::fs::metadata(path).ok().map(|data| Self::from(&data))
    }
}

impl From<&Metadata> for Stamp {
    fn from(data: &Metadata) -> Self {
        Self(
            [data.dev(), data.ino(), data.size()],
            [data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec()],
        )
    }
}

/// Reads a file that nobody else may read or change.
///
/// # Errors
/// Why it can't be read, or who could meddle with it; without a word of what is in it.
pub(super) fn read(path: &Path) -> Result<(Stamp, String), String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    // Of the file that is open, whatever the path leads to by now.
    let data = file.metadata().map_err(unreadable)?;
    trusted(data.mode(), data.uid(), rustix::process::geteuid().as_raw())?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut file, &mut text).map_err(unreadable)?;
    Ok((Stamp::from(&data), text))
}

fn trusted(mode: u32, owner: u32, own: u32) -> Result<(), String> {
    if mode & 0o007 != 0 {
        return Err("may be read or changed by everybody: chmod o= takes that away".to_owned());
    }
    if mode & 0o020 != 0 {
        return Err("may be changed by its group: chmod g-w takes that away".to_owned());
    }
    if owner != 0 && owner != own {
        return Err(format!("belongs to user {owner}: its owner must be root, or whoever runs the console"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_may_own_read_or_change_it() {
        assert!(trusted(0o100_600, 7, 7).is_ok() && trusted(0o100_640, 0, 7).is_ok());
        assert!(trusted(0o100_600, 8, 7).unwrap_err().contains("belongs to user 8"));
        for mode in [0o604, 0o602, 0o660, 0o620] {
            assert!(trusted(mode, 7, 7).is_err(), "{mode:o}");
        }
    }
}
