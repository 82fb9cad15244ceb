//! `oncely top`: a frame, a stream, and a terminal.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use testbed::eventually;
use testbed::proxy::Mode;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::command_line::stdout;
use crate::support::{World, message, program};

async fn world() -> World {
    let mut world = World::new().await;
    world.with_redis(&world.urls.redis.clone(), "");
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

/// A program with the environment of a world.
fn command(world: &World, program: &std::path::Path) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program);
    command
        .env_remove("REDIS_URL")
        .env("ONCELY_CONFIG", world.file())
        .env("DATABASE_URL", world.database.url())
        .env("AMQP_URL", &world.urls.rabbitmq)
        .env("TERM", "xterm")
        .kill_on_drop(true);
    command
}

#[tokio::test]
async fn one_frame_shows_consumers_servers_and_what_is_on_its_way() {
    let mut world = world().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for("select count(*) from oncely.processes", 2).await;
    world.publish("payments", message("acme", "k"), "{}").await;
    world.wait_for("select count(*) from app.effects", 1).await;
    // Of a message that was counted, after its span is over.
    let object = eventually("a message of the last minute", || async {
        let output = world.oncely(&["top", "--once", "--json"]).await;
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let consumer = &object["consumers"][0];
        match consumer["done"] == 1 && consumer["completed_at"].is_string() {
            true => Ok(object),
            false => Err(object.to_string()),
        }
    })
    .await
    .unwrap();
    assert_eq!((&object["schema"], &object["cell"]), (&"oncely.top/1".into(), &"main".into()));
    assert_eq!((&object["workers"], &object["relays"]), (&1.into(), &1.into()));
    let consumer = &object["consumers"][0];
    assert_eq!((&consumer["state"], &consumer["ready"]), (&"running".into(), &0.into()));
    assert_eq!((&consumer["prefetch"], &consumer["dead_letters_waiting"]), (&2_000.into(), &0.into()));
    for server in ["postgres", "rabbitmq", "redis"] {
        assert_eq!(object[server]["reachable"], true, "{object}");
    }
    let output = world.oncely(&["top", "--once", "--utc"]).await;
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "oncely top · main ·",
        "1 worker · 1 relay",
        "RabbitMQ ok · Redis ok",
        "payments  running",
        "0/2,000",
        "MIRROR QUEUE",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    world.stop(worker).await;
    world.stop(relay).await;
}

#[tokio::test]
async fn a_server_that_is_away_is_said_and_the_stream_goes_on() {
    let world = world().await;
    let (proxy, environment) = world.proxied_postgres().await;
    let mut child = command(&world, &program("oncely"))
        .args(["top", "--json", "--every", "1"])
        .envs(environment)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reachable = async |lines: &mut Lines<BufReader<ChildStdout>>, wanted: bool| {
        let waiting = async {
            loop {
                let object: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
                if object["postgres"]["reachable"] == wanted {
                    return object;
                }
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await.expect("in time")
    };
    assert_eq!(reachable(&mut lines, true).await["consumers"][0]["consumer"], "payments");
    proxy.set(Mode::BlackHole);
    let away = reachable(&mut lines, false).await;
    assert!(away["postgres"]["error"].as_str().unwrap().contains("no answer within 4s"), "{away}");
    assert_eq!((&away["rabbitmq"]["reachable"], &away["cell"]), (&true.into(), &Value::Null));
    proxy.set(Mode::Pass);
    reachable(&mut lines, true).await;
    terminate(child.id().unwrap());
    assert!(child.wait().await.unwrap().success());
    let frame =
        world.oncely_with(&["top", "--once"], &[("DATABASE_URL", "postgres://u:S3CR3T@127.0.0.1:1/d")]).await;
    let text = stdout(&frame);
    assert_eq!(frame.status.code(), Some(3), "{text}");
    assert!(text.contains("✗ PostgreSQL") && !text.contains("S3CR3T"), "{text}");
}

fn terminate(pid: u32) {
    let done = std::process::Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

/// `oncely top` on a terminal of its own.
struct OnTerminal {
    script: Child,
    keys: ChildStdin,
    seen: Arc<Mutex<String>>,
}

impl OnTerminal {
    async fn start(world: &World) -> Self {
        let top = format!("stty cols 110 rows 24; echo pid=$$.; exec {} top", program("oncely").display());
        let mut script = command(world, "script".as_ref())
            .args(["--quiet", "--return", "--flush", "--command", &top, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut out, writes) = (script.stdout.take().unwrap(), Arc::clone(&seen));
        tokio::spawn(async move {
            let mut bytes = [0; 4_096];
            while let Ok(read @ 1..) = out.read(&mut bytes).await {
                writes.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Self { keys: script.stdin.take().unwrap(), script, seen }
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap().clone()
    }

    async fn until(&self, part: &str) {
        eventually(part, || async {
            let seen = self.seen();
            if seen.contains(part) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await
        .unwrap();
    }

    async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
        self.keys.flush().await.unwrap();
    }

    fn pid(&self) -> u32 {
        let seen = self.seen();
        seen.split("pid=").nth(1).and_then(|rest| rest.split('.').next()).unwrap().parse().unwrap()
    }

    /// Waits for its end, and looks whether the terminal is as it was.
    async fn gives_the_terminal_back(mut self) {
        let ended = tokio::time::timeout(std::time::Duration::from_secs(30), self.script.wait()).await;
        assert!(ended.expect("in time").unwrap().success(), "{:?}", self.seen());
        self.until("\u{1b}[?1049l").await;
        let seen = self.seen();
        let (entered, left) = (seen.rfind("\u{1b}[?1049h").unwrap(), seen.rfind("\u{1b}[?1049l").unwrap());
        assert!(entered < left, "{seen:?}");
        assert!(seen.rfind("\u{1b}[?25h") > seen.rfind("\u{1b}[?25l"), "the cursor is seen: {seen:?}");
    }
}

#[tokio::test]
async fn on_a_terminal_a_consumer_is_paused_with_a_reason_and_q_gives_the_terminal_back() {
    let mut world = world().await;
    world.register("payments", "7 days").await;
    let mut top = OnTerminal::start(&world).await;
    top.until("NO WORKER").await;
    top.press("pschema change\r").await;
    world.wait_for("select count(*) from oncely.controls where reason = 'schema change'", 1).await;
    top.until("PAUSED").await;
    top.press("p\r").await;
    world.wait_for("select count(*) from oncely.controls", 0).await;
    top.press("q").await;
    top.gives_the_terminal_back().await;
}

#[tokio::test]
async fn sigterm_gives_the_terminal_back() {
    let world = world().await;
    let top = OnTerminal::start(&world).await;
    top.until("NO WORKER").await;
    terminate(top.pid());
    top.gives_the_terminal_back().await;
}

#[tokio::test]
async fn without_a_terminal_it_says_what_to_do() {
    let world = world().await;
    let output = world.oncely(&["top"]).await;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("use --once for one frame"), "{text}");
}

#[tokio::test]
async fn a_queue_that_is_deleted_and_a_message_that_fails_are_told() {
    let world = world().await;
    let worker = world.start("worker");
    world.wait_for_line(&worker, "subscribed").await;
    world.publish("payments", message("initech", "k"), r#"{"do": "fail"}"#).await;
    let frame = |part: &'static str| {
        let world = &world;
        eventually(part, move || async move {
            let text = stdout(&world.oncely(&["top", "--once"]).await);
            if text.contains(part) { Ok(text) } else { Err(text) }
        })
    };
    let failed = frame("tenant initech · key k failed").await.unwrap();
    assert!(failed.contains("running") && failed.contains("boom (SQLSTATE P0001)"), "{failed}");
    world.broker.delete_queue(&world.queue("payments")).await.unwrap();
    let missing = frame("NO QUEUE").await.unwrap();
    assert!(missing.contains("does not exist (oncely topology apply)"), "{missing}");
    world.stop(worker).await;
}
