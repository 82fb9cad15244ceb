//! The HTTP door: requests over raw sockets, an axum server in this process, real PostgreSQL.

mod broken;
mod client;
mod cold;
mod crashes;
mod kept;
mod languages;
mod leased;
mod load;
mod messages;
mod nested;
mod old_keys;
mod outages;
mod policies;
mod refusals;
mod replays;
mod retries;
mod shared;
#[path = "../../programs/paying/shop.rs"]
mod shop;
mod table;
#[path = "../../programs/paying/till.rs"]
mod till;
mod twins;

use std::time::Duration;

use oncely::http::{IdempotencyLayer, IdempotencyLayerBuilder};
use oncely::lease::LeaseStore;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinHandle;

use self::client::{Ask, Client};
use self::shop::Calls;
use crate::support::World;

/// A server with its layer.
struct Server {
    client: Client,
    calls: Calls,
    layer: IdempotencyLayer,
    serving: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn pool(url: &str, most: u32) -> PgPool {
    // An outage is to be told soon.
    let options = PgPoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(5));
    options.connect_lazy(url).unwrap()
}

impl Server {
    async fn start(
        pool: PgPool,
        change: impl FnOnce(IdempotencyLayerBuilder) -> IdempotencyLayerBuilder,
    ) -> Self {
        let layer = change(shop::settings(pool)).build().unwrap();
        let calls = Calls::default();
        let app = shop::app(layer.clone(), calls.clone());
        Self::serve(layer, calls, app).await
    }

    /// Handlers whose effects are in the books of a provider, under leases of a store.
    async fn leased(
        world: &World,
        store: impl LeaseStore,
        change: impl FnOnce(IdempotencyLayerBuilder) -> IdempotencyLayerBuilder,
    ) -> Self {
        let layer = change(till::settings(store)).build().unwrap();
        let calls = Calls::default();
        let app = till::app(layer.clone(), calls.clone(), pool(world.database.url(), 8).await);
        Self::serve(layer, calls, app).await
    }

    async fn serve(layer: IdempotencyLayer, calls: Calls, app: axum::Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::new(listener.local_addr().unwrap());
        let serving = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { client, calls, layer, serving }
    }

    /// With the settings of most tests.
    async fn of(world: &World) -> Self {
        Self::start(pool(world.database.url(), 8).await, |settings| settings).await
    }
}

const EFFECTS: &str = "select count(*) from app.effects";
const KEYS: &str = "select count(*) from oncely.idempotency_keys";
