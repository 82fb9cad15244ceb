//! A private RabbitMQ broker with an epmd of its own.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::files::Scratch;
use crate::life::User;
use crate::program::Program;
use crate::{install, ports, spawner, wait};

/// What Erlang's nodes know each other by.
pub(crate) const COOKIE: &str = "ONCELYTESTBED";

fn node_name(number: usize) -> String {
    format!("n{number}@localhost")
}

/// A RabbitMQ node of our own, without plugins unless its HTTP API is asked for, that can be killed and started again with its queues.
#[derive(Debug)]
pub struct RabbitMq {
    scratch: Scratch,
    /// `n1@localhost`; the nodes of a cluster are numbered.
    name: String,
    port: u16,
    epmd_port: u16,
    dist_port: u16,
    /// Of the HTTP API, where it is on.
    management_port: Option<u16>,
    /// Besides the HTTP API.
    plugins: Vec<&'static str>,
    /// Further lines of its configuration.
    settings: String,
    /// Further arguments of Erlang's machine: what no line of the configuration says.
    arguments: String,
    /// The first node's serves all nodes of its cluster.
    epmd: Option<Child>,
    child: Option<Child>,
}

impl RabbitMq {
    /// Starts an empty broker (4 to 10 seconds).
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_with(None, &[], "", "").await
    }

    /// Starts one with its HTTP API (plugin `rabbitmq_management`).
    pub async fn start_with_management() -> anyhow::Result<Self> {
        Self::start_with_settings("").await
    }

    /// The same with further lines of its configuration.
    pub async fn start_with_settings(settings: &str) -> anyhow::Result<Self> {
        Self::start_managed(&[], settings).await
    }

    async fn start_managed(plugins: &[&'static str], settings: &str) -> anyhow::Result<Self> {
        let broker = Self::start_with(Some(ports::free_port()?), plugins, settings, "").await?;
        let port = broker.management_port.context("no port")?;
        wait::eventually_within(Duration::from_secs(60), "the HTTP API listens", || async move {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.map(drop)
        })
        .await?;
        Ok(broker)
    }

    /// The same with a further plugin.
    pub async fn start_with_management_and(plugin: &'static str) -> anyhow::Result<Self> {
        Self::start_managed(&[plugin], "").await
    }

    async fn start_with(
        management_port: Option<u16>,
        plugins: &[&'static str],
        settings: &str,
        arguments: &str,
    ) -> anyhow::Result<Self> {
        install::ensure(&[install::Server::RabbitMq])?;
        let scratch = Scratch::new("rabbitmq")?;
        let mut broker = Self {
            name: node_name(1),
            port: ports::free_port()?,
            epmd_port: ports::free_port()?,
            dist_port: ports::free_port()?,
            management_port,
            plugins: plugins.to_vec(),
            settings: settings.to_owned(),
            arguments: arguments.to_owned(),
            epmd: None,
            child: None,
            scratch,
        };
        broker.write_configuration()?;
        // In the foreground and first: the daemon that the node would start itself outlives us.
        let mut command = epmd()?.bound_command(User::Same);
        command
            .arg("-port")
            .arg(broker.epmd_port.to_string())
            .args(["-address", "127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        broker.epmd = Some(spawner::spawn(command).context("cannot start epmd")?);
        broker.restart().await?;
        Ok(broker)
    }

    /// Starts a cluster of so many nodes, the first one first, with further lines of their configuration and further arguments of Erlang's
    /// machine.
    pub async fn start_cluster(nodes: usize, settings: &str, arguments: &str) -> anyhow::Result<Vec<Self>> {
        let mut cluster = vec![Self::start_with(None, &[], settings, arguments).await?];
        for number in 2..=nodes {
            let first = &cluster[0];
            let mut node = Self {
                scratch: Scratch::new("rabbitmq")?,
                name: node_name(number),
                port: ports::free_port()?,
                epmd_port: first.epmd_port,
                dist_port: ports::free_port()?,
                management_port: None,
                plugins: Vec::new(),
                settings: format!(
                    "{settings}cluster_formation.peer_discovery_backend = classic_config
\
                     cluster_formation.classic_config.nodes.1 = {}\ncluster_formation.classic_config.nodes.2 = {}\n",
                    first.name,
                    node_name(number)
                ),
                arguments: arguments.to_owned(),
                epmd: None,
                child: None,
            };
            node.write_configuration()?;
            node.restart().await?;
            cluster.push(node);
        }
        Ok(cluster)
    }

    /// Its name in Erlang.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port of AMQP.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL, as the default user.
    #[must_use]
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// URL of its HTTP API, as the default user; `None` where it has none.
    #[must_use]
    pub fn management_url(&self) -> Option<String> {
        self.management_port.map(|port| format!("http://guest:guest@127.0.0.1:{port}"))
    }

    /// Starts the broker (again) with the same data and waits until it speaks AMQP.
    pub async fn restart(&mut self) -> anyhow::Result<()> {
        self.kill()?;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.path().join("server.log"))?;
        let mut command = install::Server::RabbitMq.program()?.bound_command(User::Same);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.environment(&mut command);
        self.child = Some(spawner::spawn(command).context("cannot start rabbitmq-server")?);
        self.wait_until_answering().await
    }

    /// Waits until it speaks AMQP.
    pub async fn wait_until_answering(&self) -> anyhow::Result<()> {
        let port = self.port;
        wait::eventually_within(Duration::from_secs(90), "RabbitMQ answers", || async move {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
            let mut first = [0_u8; 1];
            tokio::time::timeout(Duration::from_secs(2), stream.read_exact(&mut first))
                .await
                .map_err(std::io::Error::other)??;
            // 1 is a METHOD frame: Connection.Start.
            if first[0] == 1 { Ok(()) } else { Err(std::io::Error::other("not AMQP")) }
        })
        .await
        .with_context(|| format!("see {}", self.scratch.path().join("server.log").display()))
    }

    /// Process id of the Erlang machine, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the node with -9 and reaps it. What was confirmed on a durable queue is there after a restart, but a queue
    /// declared a moment ago may not be, unless [`RabbitMq::flush`] was called.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Brings declared topology to disk: a declaration is confirmed before, and a kill may forget it, or leave a quorum queue
    /// without a leader for ever: its term is in a table that RabbitMQ itself saves every five seconds.
    pub async fn flush(&self) -> anyhow::Result<()> {
        self.ctl(&["eval", "mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()], ok."])
            .await
            .map(drop)
    }

    /// Runs `rabbitmqctl` against this node.
    pub async fn ctl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let program = install::Server::RabbitMq.program()?.beside("rabbitmqctl");
        let mut command = program.command(User::Same);
        self.environment(&mut command);
        command.arg("-n").arg(&self.name).args(arguments);
        let output = tokio::process::Command::from(command).output().await?;
        anyhow::ensure!(
            output.status.success(),
            "rabbitmqctl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A script in `folder` that is `rabbitmqctl` for this node; returns its path. The environment names the node, as rabbitmqctl of RabbitMQ 4
    /// reads a password only if it has no options.
    pub fn ctl_script(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let program = install::Server::RabbitMq.program()?.beside("rabbitmqctl");
        let mut command = program.command(User::Same);
        self.environment(&mut command);
        let mut script = "#!/bin/sh\n".to_owned();
        for (name, value) in command.get_envs() {
            let value = value.unwrap_or_default();
            script.push_str(&format!("export {}={}\n", name.display(), quoted(value)));
        }
        script.push_str(&format!(
            "cd {}\nexec {}",
            quoted(self.scratch.path().as_os_str()),
            quoted(command.get_program())
        ));
        for argument in command.get_args() {
            script.push_str(&format!(" {}", quoted(argument)));
        }
        script.push_str(" \"$@\"\n");
        let path = folder.join("rabbitmqctl");
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    fn write_configuration(&self) -> anyhow::Result<()> {
        let folder = self.scratch.path();
        std::fs::create_dir_all(folder.join("home"))?;
        let cookie = folder.join("home/.erlang.cookie");
        std::fs::File::create(&cookie)?.write_all(COOKIE.as_bytes())?;
        std::fs::set_permissions(&cookie, std::fs::Permissions::from_mode(0o400))?;
        let management = self.management_port.map(|_| "rabbitmq_management");
        let plugins: Vec<&str> = management.into_iter().chain(self.plugins.iter().copied()).collect();
        std::fs::write(folder.join("plugins"), format!("[{}].\n", plugins.join(",")))?;
        // The log is for failed starts: two lines for each connection would be most of it.
        let mut settings =
            format!("listeners.tcp.1 = 127.0.0.1:{}\nlog.connection.level = warning\n", self.port);
        if let Some(port) = self.management_port {
            settings.push_str(&format!("management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"));
        }
        settings.push_str(&self.settings);
        std::fs::write(folder.join("rabbitmq.conf"), settings)?;
        Ok(())
    }

    fn environment(&self, command: &mut Command) {
        let folder = self.scratch.path();
        // RUNNING_UNDER_SYSTEMD makes the script exec, so that our child is the Erlang machine itself.
        command
            .current_dir(folder)
            .env("HOME", folder.join("home"))
            .env("RUNNING_UNDER_SYSTEMD", "true")
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("ERL_CRASH_DUMP", "/dev/null")
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
            .env("RABBITMQ_LOG_BASE", folder.join("log"))
            .env("RABBITMQ_PID_FILE", folder.join("pid"))
            .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", folder.join("ff"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", folder.join("gen"))
            .env("RABBITMQ_SCHEMA_DIR", folder.join("schema"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                format!(
                    "-kernel inet_dist_use_interface {{127,0,0,1}} +S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none {}",
                    self.arguments
                ),
            );
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        let _ = self.kill();
        if let Some(mut epmd) = self.epmd.take() {
            let _ = epmd.kill();
            let _ = epmd.wait();
        }
    }
}

/// A word as a shell reads it.
fn quoted(word: &OsStr) -> String {
    format!("'{}'", word.to_string_lossy().replace('\'', r"'\''"))
}

fn epmd() -> anyhow::Result<Program> {
    // Not every package of Erlang has it in PATH.
    Program::in_path("epmd").or_else(|_| {
        let inside = std::fs::read_dir("/usr/lib/erlang")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.path().join("bin/epmd").to_str().map(str::to_owned))
            .find_map(|path| Program::at(&[&path]));
        inside.context("epmd (Erlang) not found")
    })
}
