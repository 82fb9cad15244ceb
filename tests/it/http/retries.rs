//! Client libraries' own retries, through a network that tears answers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testbed::proxy::{Direction, Mode, Protocol, Proxy};
use testbed::{Process, Scratch};

use super::{Ask, EFFECTS, KEYS, Server};
use crate::support::{World, program};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

fn target() -> PathBuf {
    let folder = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    std::fs::canonicalize(folder).unwrap()
}

/// A program sends an order for each key, one after the other, and prints what it was told: status, whether that was a replay, body. One effect
/// each, and each body as it is stored.
async fn takes_one_effect_each(command: &Path, script: Option<&Path>) {
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let proxy = Proxy::start(Protocol::Plain, server.client.address()).await.unwrap();
    let keys: Vec<String> = (0..20).map(|number| format!("retry-{number}")).collect();
    let script = script.map(|script| script.display().to_string());
    let port = proxy.port().to_string();
    let arguments = script.as_deref().into_iter().chain([port.as_str()]);
    let arguments: Vec<&str> = arguments.chain(keys.iter().map(String::as_str)).collect();
    let logs = Scratch::new("retrying").unwrap();
    let log = logs.path().join("client.log");
    proxy.set(Mode::CutAfter(Direction::Down, 150));
    let environment = [("PYTHONDONTWRITEBYTECODE", "1")];
    let mut client = Process::start(command, &arguments, &environment, &log).unwrap();
    // Each time something was torn, the network is whole for one answer or two, and then not any more.
    let mut torn = 0;
    let status = loop {
        if let Ok(status) = client.wait_for_end(Duration::from_millis(20)).await {
            break status;
        }
        if proxy.struck() > torn {
            torn = proxy.struck();
            let bytes = 500 + 97 * u32::try_from(torn).unwrap();
            proxy.set(Mode::CutAfter(Direction::Down, bytes));
        }
        assert!(torn < 1_000, "{}", client.output());
    };
    let output = client.output();
    assert!(status.success(), "{status}: {output}");
    assert!(torn >= 5, "{torn} answers were torn");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), keys.len(), "{output}");
    assert!(lines.iter().all(|line| line.starts_with("201 ")), "{output}");
    assert!(lines.iter().any(|line| line.starts_with("201 true ")), "no retry was needed: {output}");
    let count = i64::try_from(keys.len()).unwrap();
    assert_eq!((world.count(EFFECTS).await, world.count(KEYS).await), (count, count));
    assert_eq!(i64::from(server.calls.count()), count);
    // What each was told is what is stored.
    for (key, line) in keys.iter().zip(lines) {
        let body = line.splitn(3, ' ').nth(2).unwrap();
        let again = server.client.ask(&Ask::pay(key, "{}")).await;
        assert_eq!(again.body, body.as_bytes());
    }
}

#[tokio::test]
async fn urllib3_retries_through_a_network_that_tears_answers() {
    let folder = programs().join("retrying");
    let home = target().join("examples/retrying");
    let python = tokio::task::spawn_blocking({
        let folder = folder.clone();
        move || testbed::python(&folder, &home).unwrap()
    });
    takes_one_effect_each(&python.await.unwrap(), Some(&folder.join("client.py"))).await;
}

#[tokio::test]
async fn undici_retries_through_a_network_that_tears_answers() {
    let home = target().join("examples/retrying_undici");
    let node = tokio::task::spawn_blocking({
        let home = home.clone();
        move || testbed::node(&programs().join("retrying_undici"), &home).unwrap()
    });
    takes_one_effect_each(&node.await.unwrap(), Some(&home.join("client.js"))).await;
}

#[tokio::test]
async fn reqwest_retries_through_a_network_that_tears_answers() {
    let built = tokio::task::spawn_blocking(build_reqwest).await.unwrap();
    takes_one_effect_each(&built, None).await;
}

/// A package of its own: no other test needs all that it is made of. Most of it is there already.
fn build_reqwest() -> PathBuf {
    let target = target();
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--manifest-path"])
        .arg(programs().join("retrying_reqwest/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("CARGO_BUILD_BUILD_DIR")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("debug/retrying")
}
