//! A network namespace for programs, with a link to this one (network_namespaces(7), veth(4)).

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use crate::process::Process;
use crate::{apt, tool, wait};

/// A network namespace with one link, of MTU 1500, to the one of this process. It ends with this value, or this process.
#[derive(Debug)]
pub struct Namespace {
    /// Keeps the namespace alive.
    holder: Process,
    host: Ipv4Addr,
}

impl Namespace {
    /// Creates a namespace. Its log is written into `folder`. Needs root.
    ///
    /// # Errors
    /// If this process isn't root, or the kernel refuses a namespace.
    pub async fn create(folder: &Path) -> anyhow::Result<Self> {
        anyhow::ensure!(apt::is_root(), "a network namespace needs root");
        let ip = tool::ip()?;
        let log = folder.join("namespace.log");
        let holder = Process::start(Path::new("unshare"), &["--net", "sleep", "infinity"], &[], &log)?;
        let (pid, own) = (holder.id(), std::fs::read_link("/proc/self/ns/net")?);
        wait::eventually("the namespace is there", || async {
            let of_holder = std::fs::read_link(format!("/proc/{pid}/ns/net"))?;
            anyhow::ensure!(of_holder != own, "{}", holder.output());
            Ok(())
        })
        .await?;
        // RFC 2544 gives 198.18.0.0/15 to benchmarks; each namespace has four addresses of it.
        let block = pid % (1 << 14) * 4;
        let address =
            |index: u32| Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + block + index);
        let namespace = Self { holder, host: address(1) };
        let (outside, inside) = (format!("oncely{pid}"), "eth0");
        let run = |command: &mut Command, words: String| {
            let output = command.args(words.split(' ')).stdin(Stdio::null()).output();
            let output = output.with_context(|| format!("cannot run ip {words}"))?;
            anyhow::ensure!(
                output.status.success(),
                "ip {words}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            Ok(())
        };
        run(
            &mut Command::new(&ip),
            format!("link add {outside} mtu 1500 type veth peer name {inside} mtu 1500 netns {pid}"),
        )?;
        run(&mut Command::new(&ip), format!("addr add {}/30 dev {outside}", address(1)))?;
        run(&mut Command::new(&ip), format!("link set {outside} up"))?;
        for words in [
            format!("addr add {}/30 dev {inside}", address(2)),
            format!("link set {inside} up"),
            "link set lo up".to_owned(),
        ] {
            let (nsenter, mut prefix) = namespace.prefix();
            prefix.push(ip.display().to_string());
            run(Command::new(nsenter).args(prefix), words)?;
        }
        Ok(namespace)
    }

    /// Returns the address of this process's side of the link, for listeners that programs in the namespace connect to.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    /// Returns a program, and its first arguments, that execute another program in the namespace, with the same process id.
    #[must_use]
    pub fn prefix(&self) -> (&'static str, Vec<String>) {
        ("nsenter", vec![format!("--net=/proc/{}/ns/net", self.holder.id()), "--".to_owned()])
    }
}
