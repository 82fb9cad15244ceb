//! A client library's own retry, through a network that tears answers.

use std::path::Path;
use std::time::Duration;

use testbed::proxy::{Direction, Mode, Protocol, Proxy};
use testbed::{Process, Scratch};

use super::{EFFECTS, Server};
use crate::support::{World, program};

#[tokio::test]
async fn urllib3_retries_through_a_network_that_tears_answers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/retrying");
    let target = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    let target = std::fs::canonicalize(target).unwrap();
    let python = testbed::python(&folder, &target.join("examples/retrying")).unwrap();
    let mut world = World::new().await;
    let server = Server::of(&world).await;
    let proxy = Proxy::start(Protocol::Plain, server.client.address()).await.unwrap();
    let keys: Vec<String> = (0..20).map(|number| format!("retry-{number}")).collect();
    let script = folder.join("client.py").display().to_string();
    let port = proxy.port().to_string();
    let mut arguments = vec![script.as_str(), port.as_str()];
    arguments.extend(keys.iter().map(String::as_str));
    let logs = Scratch::new("retrying").unwrap();
    let log = logs.path().join("client.log");
    proxy.set(Mode::CutAfter(Direction::Down, 150));
    let environment = [("PYTHONDONTWRITEBYTECODE", "1")];
    let mut client = Process::start(&python, &arguments, &environment, &log).unwrap();
    // Each time something was torn, the network is whole for one answer or two, and then not any more.
    let mut torn = 0;
    let status = loop {
        if let Ok(status) = client.ended(Duration::from_millis(20)).await {
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
    assert_eq!((world.count(EFFECTS).await, i64::from(server.calls.count())), (count, count));
    // What each was told is what is stored.
    for (key, line) in keys.iter().zip(lines) {
        let body = line.splitn(3, ' ').nth(2).unwrap();
        let again = server.client.ask(&super::Ask::pay(key, "{}")).await;
        assert_eq!(again.body, body.as_bytes());
    }
}
