//! The peers' programs: installed below `target/`, from the versions that `bench/peers` pins.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use testbed::{Process, free_port};

use crate::bench::site::{Member, Site};
use crate::process;

/// A program in `bench/peers`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    Node(&'static str),
    Python(&'static str),
    /// One for Node, beside the server of Restate.
    Restate(&'static str),
}

/// The folders that the languages' own clients have filled.
#[derive(Debug)]
pub(crate) struct Installation {
    node: PathBuf,
    python: PathBuf,
}

impl Installation {
    /// Installs the packages of the programs.
    pub(crate) fn make(programs: &[Program]) -> anyhow::Result<Self> {
        let here = std::env::current_exe()?;
        let target = here.parent().and_then(Path::parent).context("no folder")?.join("peers");
        let made = Self { node: target.join("node"), python: target.join("python") };
        let python = programs.iter().any(|program| matches!(program, Program::Python(_)));
        let node = programs.iter().any(|program| !matches!(program, Program::Python(_)));
        let sources = process::root().join("bench/peers");
        if node {
            eprintln!("installing the peers in Node");
            testbed::node(&sources.join("node"), &made.node)?;
        }
        if python {
            eprintln!("installing the peers in Python");
            testbed::python(&sources.join("python"), &made.python)?;
        }
        Ok(made)
    }

    /// Returns a program of a package for this processor: npm has installed the one that fits.
    fn of_processor(&self, package: &str, program: &str) -> anyhow::Result<PathBuf> {
        let processor = match std::env::consts::ARCH {
            "x86_64" => "x64",
            "aarch64" => "arm64",
            other => anyhow::bail!("{package} is not published for {other}; leave its peers out with --only"),
        };
        Ok(self.node.join("node_modules").join(format!("{package}-linux-{processor}")).join(program))
    }
}

impl Program {
    /// Starts it on a site; returns its processes, and the folder in which it keeps data beside PostgreSQL's.
    pub(crate) fn start(
        self,
        role: &'static str,
        installation: &Installation,
        site: &Site<'_>,
    ) -> anyhow::Result<(Vec<Member>, Option<PathBuf>)> {
        let start = |role: &'static str, program: &Path, arguments: &[&str], more: &[(&str, &str)]| {
            let log = site.stage.scratch.path().join(format!("{}-{role}.log", site.queue));
            let mut environment = site.environment().to_vec();
            environment.extend([("QUEUE", site.queue.as_str()), ("NODE_ENV", "production")]);
            environment.extend(more);
            Ok::<_, anyhow::Error>(Member {
                role,
                process: Process::start(program, arguments, &environment, &log)?,
            })
        };
        // The newest versions of the peers ask for a newer Node than Debian's.
        let node = || installation.of_processor("node", "bin/node");
        match self {
            Self::Node(file) => {
                let file = installation.node.join(file);
                Ok((vec![start(role, &node()?, &[&file.display().to_string()], &[])?], None))
            }
            Self::Python(file) => {
                let file = process::root().join("bench/peers/python").join(file);
                let python = installation.python.join("bin/python");
                Ok((vec![start(role, &python, &[&file.display().to_string()], &[])?], None))
            }
            Self::Restate(file) => {
                let data = site.stage.scratch.path().join(format!("{}-restate", site.queue));
                let (ingress, admin) = (free_port()?, free_port()?);
                let (fabric, service) = (free_port()?, free_port()?);
                let server = installation.of_processor("@restatedev/restate-server", "bin/restate-server")?;
                let arguments = ["--no-logo", "--listen-mode", "tcp", "--base-dir"];
                let folder = data.display().to_string();
                let addresses = [ingress, admin, fabric].map(|port| format!("127.0.0.1:{port}"));
                let server = start(
                    "restate-server",
                    &server,
                    &[&arguments[..], &[folder.as_str()]].concat(),
                    &[
                        ("RESTATE_INGRESS__BIND_ADDRESS", &addresses[0]),
                        ("RESTATE_ADMIN__BIND_ADDRESS", &addresses[1]),
                        ("RESTATE_BIND_ADDRESS", &addresses[2]),
                        ("RESTATE_ADVERTISED_ADDRESS", &format!("http://{}", addresses[2])),
                        ("RESTATE_DISABLE_TELEMETRY", "true"),
                        ("RESTATE_LOG_FILTER", "warn"),
                    ],
                )?;
                let file = installation.node.join(file);
                let service = start(
                    role,
                    &node()?,
                    &[&file.display().to_string()],
                    &[
                        ("RESTATE_INGRESS_URL", &format!("http://{}", addresses[0])),
                        ("RESTATE_ADMIN_URL", &format!("http://{}", addresses[1])),
                        ("RESTATE_SERVICE_PORT", &service.to_string()),
                        // By default there is a line for each call.
                        ("RESTATE_LOGGING", "WARN"),
                    ],
                )?;
                Ok((vec![service, server], Some(data)))
            }
        }
    }
}
