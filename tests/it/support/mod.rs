//! A world of its own for each test: a database, queues with a prefix, a configuration, and the programs.

pub(crate) mod exposition;
pub(crate) mod gate;
mod handler;
pub(crate) mod http;
mod login;
pub(crate) mod otlp;
pub(crate) mod rude;
mod world;

pub(crate) use handler::HANDLER;
pub(crate) use login::Login;
pub(crate) use world::{World, message};

use std::path::PathBuf;
use testbed::Servers;
use tokio::sync::OnceCell;

/// The servers that the tests of this process share. Those that kill servers start their own.
pub(crate) async fn servers() -> &'static Servers {
    static SERVERS: OnceCell<Servers> = OnceCell::const_new();
    SERVERS.get_or_init(|| async { Servers::start().await.expect("servers") }).await
}

/// The path of one of our programs.
pub(crate) fn program(name: &str) -> PathBuf {
    PathBuf::from(match name {
        "worker" => env!("CARGO_BIN_EXE_worker"),
        "relay" => env!("CARGO_BIN_EXE_relay"),
        "oncely" => env!("CARGO_BIN_EXE_oncely"),
        "charging" | "http_door" | "http_leases" | "paying" => {
            let examples = PathBuf::from(env!("CARGO_BIN_EXE_oncely")).with_file_name("examples");
            let example = examples.join(name);
            assert!(example.exists(), "run `cargo build --examples`: {} is not there", example.display());
            return example;
        }
        other => panic!("no program {other}"),
    })
}

/// The verbs of `oncely` that none of these command lines begins with.
pub(crate) fn untried<'a>(tried: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let tried: std::collections::BTreeSet<&str> = tried.into_iter().collect();
    let help = std::process::Command::new(program("oncely")).arg("--help").output().expect("oncely");
    let help = String::from_utf8(help.stdout).expect("UTF-8");
    let (_, commands) = help.split_once("Commands:\n").expect("commands");
    let (commands, _) = commands.split_once("\n\n").expect("an end");
    let verbs = commands.lines().filter_map(|line| line.split_whitespace().next());
    verbs.filter(|verb| !tried.contains(verb)).map(str::to_owned).collect()
}
