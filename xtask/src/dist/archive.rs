//! A tarball that depends on what is in it and on nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use sha2::{Digest as _, Sha256};
use tar::{Archive, Builder, EntryType, Header};

use super::tree::Tree;

/// Packs a tree below a folder of this name: sorted, of user and group 0, all of one time, which the gzip around it does not say again.
pub(super) fn pack(tree: &Tree, folder: &str, time: u64) -> anyhow::Result<Vec<u8>> {
    let gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    let mut archive = Builder::new(gzip);
    let top = Path::new(folder);
    let folders: BTreeSet<&Path> =
        tree.keys().flat_map(|path| path.ancestors().skip(1)).filter(|path| *path != Path::new("")).collect();
    append(&mut archive, top, EntryType::Directory, 0o755, time, &[])?;
    for path in folders {
        append(&mut archive, &top.join(path), EntryType::Directory, 0o755, time, &[])?;
    }
    for (path, packed) in tree {
        append(&mut archive, &top.join(path), EntryType::Regular, packed.mode, time, &packed.bytes)?;
    }
    Ok(archive.into_inner()?.finish()?)
}

fn append(
    archive: &mut Builder<impl std::io::Write>,
    path: &Path,
    kind: EntryType,
    mode: u32,
    time: u64,
    bytes: &[u8],
) -> anyhow::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(time);
    header.set_size(bytes.len().try_into()?);
    Ok(archive.append_data(&mut header, path, bytes)?)
}

/// SHA-256 of each file of a tarball.
pub(super) fn sums(tarball: &[u8]) -> anyhow::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut archive = Archive::new(GzDecoder::new(tarball));
    let mut sums = BTreeMap::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        sums.insert(entry.path()?.into_owned(), Sha256::digest(&bytes).to_vec());
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Packed;
    use super::*;

    fn tree() -> Tree {
        let packed = |mode, bytes: &[u8]| Packed { mode, bytes: bytes.to_vec() };
        Tree::from([
            ("usr/share/doc/a".into(), packed(0o644, b"text")),
            ("usr/bin/oncely".into(), packed(0o755, b"program")),
        ])
    }

    #[test]
    fn the_same_tree_makes_the_same_bytes() {
        let first = pack(&tree(), "oncely-1", 1_700_000_000).unwrap();
        assert_eq!(first, pack(&tree(), "oncely-1", 1_700_000_000).unwrap());
        assert_ne!(first, pack(&tree(), "oncely-1", 1_700_000_001).unwrap(), "the time is the commit's");
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let packed = pack(&tree(), "oncely-1", 0).unwrap();
        let mut archive = Archive::new(GzDecoder::new(&packed[..]));
        let mut seen = BTreeSet::from([PathBuf::new()]);
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().into_owned();
            assert!(seen.contains(path.parent().unwrap()), "{}", path.display());
            assert_eq!((entry.header().uid().unwrap(), entry.header().gid().unwrap()), (0, 0));
            seen.insert(path);
        }
        assert_eq!(sums(&packed).unwrap().len(), 7, "five folders, two files");
    }
}
