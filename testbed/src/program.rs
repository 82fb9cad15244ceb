//! A server's program, and how it is run: as it is, or inside the root of another Debian release.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::apt;
use crate::life::{Life, NOBODY, User};
use crate::root::Root;

/// A program of one of the servers.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// As the file system that it runs in has it.
    path: PathBuf,
    root: Option<&'static Root>,
}

impl Program {
    /// PostgreSQL's `name`: of the newest version there, 15 or later.
    pub(crate) fn postgres(name: &str) -> anyhow::Result<Self> {
        const VERSIONS: &str = "/usr/lib/postgresql";
        let root = Root::current()?;
        let mut versions: Vec<(u32, PathBuf)> = std::fs::read_dir(outside(root, Path::new(VERSIONS)))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.parse().ok()?;
                Some((version, Path::new(VERSIONS).join(entry.file_name()).join("bin").join(name)))
            })
            .filter(|(version, path)| *version >= 15 && is_there(root, path))
            .collect();
        versions.sort();
        match versions.pop() {
            Some((_, path)) => Ok(Self { path, root }),
            None => Self::in_path(name),
        }
    }

    /// `name` in one of the folders of `PATH`.
    pub(crate) fn in_path(name: &str) -> anyhow::Result<Self> {
        match Root::current()? {
            // Debian's own; what this process has in its PATH may not be there.
            Some(_) => Self::at(&[&format!("/usr/bin/{name}"), &format!("/usr/sbin/{name}")]),
            None => apt::in_path(name).map(|path| Self { path, root: None }),
        }
        .with_context(|| format!("{name} not found"))
    }

    /// The first of these that exists.
    pub(crate) fn at(paths: &[&str]) -> Option<Self> {
        let root = Root::current().ok()?;
        let path = paths.iter().map(PathBuf::from).find(|path| is_there(root, path))?;
        Some(Self { path, root })
    }

    /// The program of this name beside this one.
    pub(crate) fn beside(&self, name: &str) -> Self {
        Self { path: self.path.with_file_name(name), root: self.root }
    }

    /// Is it there?
    pub(crate) fn exists(&self) -> bool {
        is_there(self.root, &self.path)
    }

    /// A command for it, for what runs to its end.
    pub(crate) fn command(&self, user: User) -> Command {
        self.launch(user, Life::Free)
    }

    /// A command for it that dies with this process; start it with [`crate::spawner::spawn`].
    pub(crate) fn bound_command(&self, user: User) -> Command {
        self.launch(user, Life::Bound)
    }

    fn launch(&self, user: User, life: Life) -> Command {
        if let Some(root) = self.root {
            return root.enter(&self.path, user, life);
        }
        let mut command = life.command(&self.path);
        if user == User::Nobody && apt::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

/// Where a path of `root` is for this process.
fn outside(root: Option<&Root>, path: &Path) -> PathBuf {
    root.map_or_else(|| path.to_owned(), |root| root.outside(path))
}

fn is_there(root: Option<&Root>, path: &Path) -> bool {
    match root {
        // A link may lead to where only those inside find something.
        Some(root) => root.outside(path).symlink_metadata().is_ok(),
        None => path.exists(),
    }
}
