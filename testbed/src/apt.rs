//! Debian's packages, installed where programs are missing.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::files::lock_exclusively;

/// `name` in one of the folders of `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Is this process root?
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Names the missing programs, and the reason why they could not be installed.
pub(crate) struct Failure {
    pub(crate) missing: String,
    pub(crate) why: &'static str,
}

/// Installs Debian's packages of what `missing` names, until it names nothing.
pub(crate) fn install(missing: impl Fn() -> Option<(String, Vec<&'static str>)>) -> Result<(), Failure> {
    if missing().is_none() {
        return Ok(());
    }
    let lock = lock_exclusively("apt");
    let Some((names, packages)) = missing() else { return Ok(()) };
    let failure = |why| Failure { missing: names.clone(), why };
    let _guard = lock.map_err(|_| failure("the lock of installations can't be had"))?;
    let Some(apt) = in_path("apt-get") else {
        return Err(failure("this is not a Debian system, so they cannot be installed from here"));
    };
    let sudo = if is_root() { None } else { in_path("sudo") };
    if !is_root() && sudo.is_none() {
        return Err(failure("installing them needs root, and there is no sudo"));
    }
    eprintln!(
        "{names} not found: installing Debian's {} (no service is started, no default port is used)",
        packages.join(", ")
    );
    let policy = ServicePolicy::forbid_starts();
    let run = |arguments: &[&str]| -> Result<bool, Failure> {
        let mut command = match &sudo {
            Some(sudo) => {
                let mut command = Command::new(sudo);
                command.arg("-n").arg(&apt);
                command
            }
            None => Command::new(&apt),
        };
        let output = command
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .map_err(|_| failure("apt-get cannot be run"))?;
        if !output.status.success() {
            eprintln!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(output.status.success())
    };
    let mut install = vec!["install", "-y", "-q", "--no-install-recommends"];
    install.extend(&packages);
    // The package lists may be old or absent: fetch them first, and let an offline machine try with what it has.
    let updated = run(&["update", "-q"])?;
    let installed = run(&install)?;
    drop(policy);
    match missing() {
        None if installed => Ok(()),
        still => Err(Failure {
            missing: still.map_or(names, |(names, _)| names),
            why: match updated {
                true => "apt-get could not install them",
                false => "apt-get could not fetch its package lists",
            },
        }),
    }
}

/// While it lives, Debian's packages start no service (policy-rc.d, exit 101); a policy already there is left alone.
struct ServicePolicy {
    ours: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl ServicePolicy {
    fn forbid_starts() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let ours = !Path::new(POLICY).exists()
            && std::fs::write(POLICY, "#!/bin/sh\nexit 101\n").is_ok()
            && std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755)).is_ok();
        Self { ours }
    }
}

impl Drop for ServicePolicy {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}
