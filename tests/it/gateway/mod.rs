//! `oncely gateway`: the program, a service over real sockets, clients that write bytes.

mod alive;
mod answers;
mod browser;
mod client;
mod crashes;
mod health;
mod memory;
mod once;
mod places;
mod refused;
mod secrets;
mod settled;
mod slow;
mod stops;
mod suspended;
mod through;
mod transport;
mod unknown;
mod upstream;

use testbed::Process;

use self::client::{Client, Reply, get, post, with};
use self::upstream::Upstream;
use crate::support::World;
use crate::support::http::address_in;

/// A gateway, its service and its database.
struct Site {
    world: World,
    upstream: Upstream,
    process: Process,
    client: Client,
}

const PRINCIPAL: &str = "principal = [\"authorization\"]\n";
/// Short enough for a test to wait for.
const SHORT: &str = "lease = \"2s\"\nmax_run = \"5s\"";

impl Site {
    /// `settings`: lines of `[gateway]`.
    async fn start(settings: &str) -> Self {
        Self::before(Upstream::start().await, settings).await
    }

    /// Before a service of its own.
    async fn before(upstream: Upstream, settings: &str) -> Self {
        Self::of(World::new().await, upstream, settings, &[]).await
    }

    /// With a database of its own, and further variables.
    async fn of(
        mut world: World,
        upstream: Upstream,
        settings: &str,
        more: &[(&'static str, String)],
    ) -> Self {
        let principal = if settings.contains("principal") { "" } else { PRINCIPAL };
        world.configure(&format!("[log]\nlevel = \"debug\"\n[gateway]\n{principal}{settings}"));
        let process = start(&world, &upstream, "gateway", more);
        let client = reached(&process).await;
        Self { world, upstream, process, client }
    }

    /// Another gateway beside the first one.
    async fn another(&self, name: &str) -> (Process, Client) {
        let process = start(&self.world, &self.upstream, name, &[]);
        let client = reached(&process).await;
        (process, client)
    }

    async fn ask(&self, request: &str) -> Reply {
        self.client.ask(request).await
    }

    /// Stops it, and returns its log.
    async fn stop(self) -> String {
        self.world.stopped_log(self.process).await
    }
}

fn start(world: &World, upstream: &Upstream, name: &str, more: &[(&'static str, String)]) -> Process {
    let url = upstream.url();
    let arguments = ["gateway", "--upstream", &url, "--listen", "127.0.0.1:0"];
    world.start_verb("oncely", &arguments, name, more)
}

/// Where a gateway listens, as its log says.
async fn reached(process: &Process) -> Client {
    Client(address_in(process, "gateway listening").await.parse().unwrap())
}

/// A gateway before nobody, and where it tells its metrics: the configuration says `metrics` and `principal`.
pub(crate) async fn alone(world: &World) -> (Process, String) {
    let arguments = ["gateway", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let process = world.start_verb("oncely", &arguments, "gateway", &[]);
    let address = health::health(&process).await;
    (process, address)
}

/// Asks a gateway on this database for all that it can say to it.
pub(crate) async fn every_statement(world: &World) {
    let upstream = Upstream::start().await;
    let principal = [("ONCELY_GATEWAY__PRINCIPAL", "[\"authorization\"]".to_owned())];
    let process = start(world, &upstream, "gateway", &principal);
    let client = reached(&process).await;
    for (path, status) in [
        ("/do/201", 201),
        ("/do/201", 201),
        ("/do/429", 429),
        ("/do/500", 500),
        ("/do/torn", 409),
        ("/do/torn", 409),
    ] {
        let reply = client.ask(&post(path, path.trim_start_matches("/do/"), "{}")).await;
        assert_eq!(reply.status, status, "{path}: {reply:?}");
    }
    world.stop(process).await;
}

/// Of the key's row: its state, and why it is over.
async fn state(world: &mut World, key: &str) -> Option<String> {
    let query = format!(
        "select concat_ws(' ', status, reason) from oncely.idempotency_keys where consumer = 'gateway' and key = '{key}'"
    );
    world.text(&query).await
}
