//! `cargo xtask dynamodb`: the lease store in DynamoDB, against moto.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::process;

/// DynamoDB as moto imitates it: a server that ends with this value.
pub(crate) struct Moto {
    process: Child,
    url: String,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _status = self.process.wait();
    }
}

impl Moto {
    /// The folder of the store.
    pub(crate) const PACKAGE: &str = "stores/dynamodb";

    /// Where the store and its tests are built: a workspace of its own, hardly anything is the same.
    pub(crate) fn target() -> anyhow::Result<PathBuf> {
        Ok(Self::home()?.join("target"))
    }

    fn home() -> anyhow::Result<PathBuf> {
        let here = std::env::current_exe()?;
        Ok(here.parent().and_then(std::path::Path::parent).context("no folder")?.join("dynamodb"))
    }

    /// Starts it; what it needs comes from the Python package index, once.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let tests = process::root().join(Self::PACKAGE).join("tests");
        let python = testbed::python(&tests, &Self::home()?.join("moto"))?;
        let mut command = Command::new(python);
        command.arg(tests.join("serve.py")).stdout(Stdio::piped()).stderr(Stdio::null());
        let process = command.spawn().context("cannot start moto")?;
        let mut moto = Self { process, url: String::new() };
        let stdout = moto.process.stdout.take().context("moto has no output")?;
        let mut port = String::new();
        BufReader::new(stdout).read_line(&mut port)?;
        anyhow::ensure!(!port.trim().is_empty(), "moto ended before it said its port");
        moto.url = format!("http://127.0.0.1:{}", port.trim());
        Ok(moto)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// How often each request was made since this was asked last.
    pub(crate) fn requests(&self) -> anyhow::Result<BTreeMap<String, u32>> {
        let told = ureq::get(format!("{}/requests", self.url)).call()?.body_mut().read_to_string()?;
        Ok(serde_json::from_str(&told)?)
    }
}

/// Starts moto, builds the store and its tests, and runs them. Outside of CI: the SDK takes minutes to compile.
pub(crate) fn run() -> anyhow::Result<()> {
    let moto = Moto::start()?;
    let mut test = process::cargo(&process::root().join(Moto::PACKAGE));
    test.args(["test", "--locked", "--target-dir"]).arg(Moto::target()?).env("DYNAMODB_URL", moto.url());
    process::run(&mut test)
}
