//! `cargo xtask dynamodb`: the lease store in DynamoDB, against moto.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::process;

/// A server that ends with this program.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Starts moto, from the Python package index, builds the store and its tests, and runs them. Outside of CI: the SDK takes minutes to compile.
pub(crate) fn run() -> anyhow::Result<()> {
    let here = std::env::current_exe()?;
    // A workspace of its own, with a target folder of its own: hardly anything is the same.
    let target = here.parent().and_then(std::path::Path::parent).context("no folder")?.join("dynamodb");
    let folder = process::root().join("stores/dynamodb");
    let python = testbed::python(&folder.join("tests"), &target.join("moto"))?;
    let mut command = Command::new(python);
    command.arg(folder.join("tests/serve.py")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Server(command.spawn().context("cannot start moto")?);
    let stdout = server.0.stdout.take().context("moto has no output")?;
    let mut port = String::new();
    BufReader::new(stdout).read_line(&mut port)?;
    anyhow::ensure!(!port.trim().is_empty(), "moto ended before it said its port");
    let url = format!("http://127.0.0.1:{}", port.trim());
    let mut test = process::cargo(&folder);
    test.args(["test", "--locked", "--target-dir"]).arg(target.join("target")).env("DYNAMODB_URL", url);
    process::run(&mut test)
}
