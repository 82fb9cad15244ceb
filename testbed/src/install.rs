//! How the servers' programs come onto a bare Debian machine.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::Context as _;

use crate::program::{Program, User};
use crate::root::Root;

/// One of the three servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Postgres,
    RabbitMq,
    Redis,
}

impl Server {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::RabbitMq => "RabbitMQ",
            Self::Redis => "Redis",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::RabbitMq => "rabbitmq-server",
            Self::Redis => "redis-server",
        }
    }

    /// The program that starts the server.
    ///
    /// # Errors
    /// Where it is not installed.
    pub(crate) fn program(self) -> anyhow::Result<Program> {
        match self {
            Self::Postgres => Program::postgres("postgres"),
            // Not the one in PATH: Debian's wrapper there switches to the user `rabbitmq` and its own folders.
            Self::RabbitMq => Program::at(&[
                "/usr/lib/rabbitmq/bin/rabbitmq-server",
                "/opt/homebrew/opt/rabbitmq/sbin/rabbitmq-server",
            ])
            .context("rabbitmq-server not found"),
            Self::Redis => Program::in_path("redis-server").or_else(|_| Program::in_path("valkey-server")),
        }
    }

    fn is_installed(self) -> bool {
        self.program().is_ok_and(|program| match self {
            // A package half removed leaves programs without their share files; initdb needs those.
            Self::Postgres => program.beside("initdb").exists() && share_files(&program),
            Self::RabbitMq | Self::Redis => true,
        })
    }
}

fn share_files(postgres: &Program) -> bool {
    let output = postgres.beside("pg_config").command(User::Same).arg("--sharedir").output();
    match output {
        Ok(output) if output.status.success() => {
            Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("postgres.bki").exists()
        }
        // Without pg_config nothing can be said against the installation.
        _ => true,
    }
}

/// `name` in one of the folders of `PATH`.
pub(crate) fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Is this process root?
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Sees to it that the programs of all `servers` are there, installing Debian's packages where they are not, or the root that
/// they are in.
pub(crate) fn ensure(servers: &[Server]) -> anyhow::Result<()> {
    if servers.is_empty() {
        return Ok(());
    }
    if let Some(root) = Root::current()? {
        return root.make();
    }
    let missing = || -> Vec<Server> { servers.iter().copied().filter(|s| !s.is_installed()).collect() };
    let names = |servers: &[Server]| servers.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ");
    let packages: fn(&[Server]) -> Vec<&'static str> =
        |servers| servers.iter().map(|s| s.package()).collect();
    install(|| {
        let missing = missing();
        (!missing.is_empty()).then(|| (names(&missing), packages(&missing)))
    })
    .map_err(|failure| anyhow::anyhow!(choices(&failure)))
}

/// What is still missing, and why it could not be installed.
pub(crate) struct Failure {
    pub(crate) missing: String,
    pub(crate) why: &'static str,
}

/// Installs Debian's packages of what `missing` names, until it names nothing.
pub(crate) fn install(missing: impl Fn() -> Option<(String, Vec<&'static str>)>) -> Result<(), Failure> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    // An earlier installation that panicked is no reason not to try.
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Some((names, packages)) = missing() else { return Ok(()) };
    let failure = |why| Failure { missing: names.clone(), why };
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

/// One clear message with what the user can do.
fn choices(Failure { missing, why }: &Failure) -> String {
    format!(
        "{missing} needed, and {why}. One of these helps:\n  \
         - run as root on Debian or Ubuntu, so that the packages can be installed;\n  \
         - install them yourself: postgresql (15 or later), rabbitmq-server, redis-server or valkey-server;\n  \
         - docker compose up --detach --wait postgres rabbitmq redis, then export the three URLs that \
         docker-compose.yml names in its first lines;\n  \
         - export DATABASE_URL, AMQP_URL and REDIS_URL of servers that may be used for tests."
    )
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
