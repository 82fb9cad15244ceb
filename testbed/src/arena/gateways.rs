//! Gateways before a slow service that knows no keys, and clients that ask through them: processes and faults of their own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Arena;
use super::crew::{Crew, Strike, clock};
use super::member::Member;
use super::requester::{Requester, Target};
use crate::checker::{Call, Intent, Key, Order, PROXIED, Sent};
use crate::{Provider, eventually_within, free_port};

/// Processes.
const MEMBERS: usize = 2;
/// Until they listen.
const LISTENS: Duration = Duration::from_secs(20);
/// Longest wait for the clients' last answers, and for what the gateways have yet to store.
const ANSWERED: Duration = Duration::from_secs(70);
const STORED: Duration = Duration::from_secs(20);
/// An ordered end that takes longer has left work undone: `worker.shutdown` of a trial, less a second.
const GRACE: Duration = Duration::from_secs(19);

/// As short as can be, and answers that are held and kept, and others that are passed on.
const SETTINGS: [(&str, &str); 7] = [
    ("tenant", "{ header = \"x-tenant-id\" }"),
    ("principal", "[\"authorization\"]"),
    ("not_done", "[503]"),
    ("lease", "\"5s\""),
    // Below worker.shutdown: what has begun is answered before it ends.
    ("max_run", "\"18s\""),
    ("max_response", "100000"),
    ("retention", "\"30d\""),
];

/// See the module.
#[derive(Debug)]
pub(super) struct Gateways {
    crew: Crew,
    service: Provider,
    requester: Requester,
    /// What was asked, by key: an operator has it asked again.
    asked: BTreeMap<Key, Intent>,
}

impl Gateways {
    pub(super) fn members(&self) -> &[Member] {
        self.crew.members()
    }

    pub(super) fn stands_still(&self) -> bool {
        self.crew.stands_still()
    }

    /// The service's books.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.service.calls()
    }
}

impl Arena {
    /// Starts the service, the gateways and their clients.
    pub async fn start_gateways(&mut self, seed: u64) -> anyhow::Result<()> {
        let service = Provider::start().await?;
        let upstream = format!("\"http://{}\"", service.address());
        let file = self.folder().join("gateway.toml");
        let own = [("consumer", format!("{PROXIED:?}")), ("upstream", upstream)];
        let own = own.iter().map(|(key, value)| (*key, value.as_str())).chain(SETTINGS);
        let config = own.fold(self.config.clone(), |config, (key, value)| config.set("gateway", key, value));
        std::fs::write(&file, config.toml(&self.queue))?;
        let urls = self.database_urls();
        let (mut members, mut servers) = (Vec::new(), Vec::new());
        for number in 1..=MEMBERS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            let mut config = config.clone();
            let more = [
                ("ONCELY_CONFIG", file.display().to_string()),
                ("ONCELY_GATEWAY__LISTEN", address.to_string()),
            ];
            config.environment.extend(more.map(|(name, value)| (name.to_owned(), value)));
            let member = Member::start(&config, self.folder(), "gateway", number, &urls, &self.database);
            members.push(member.await?);
            let listens = async || tokio::net::TcpStream::connect(address).await.map(drop);
            eventually_within(LISTENS, "a gateway listens", listens).await?;
            servers.push(address);
        }
        let target = Target { servers, path: "/order", is_for_pages: true };
        let books = Arc::new(Mutex::new(Sent::default()));
        let requester = Requester::start(&target, &books, seed.wrapping_mul(37));
        let crew = Crew::new(members);
        self.gateways = Some(Gateways { crew, service, requester, asked: BTreeMap::new() });
        Ok(())
    }

    /// Asks for these orders through a gateway, in the background.
    pub fn request_through(&mut self, orders: &[Order]) {
        let Some(gateways) = &mut self.gateways else { return };
        let intents: Vec<Intent> = orders.iter().map(Order::intent).collect();
        let keyed =
            intents.iter().map(|intent| ((intent.tenant.clone(), intent.key.clone()), intent.clone()));
        gateways.asked.extend(keyed);
        gateways.requester.ask(intents);
    }

    /// Asks for one of them again.
    pub(super) fn request_again(&self, key: &Key) {
        if let Some(gateways) = &self.gateways {
            gateways.requester.ask(gateways.asked.get(key).cloned().into_iter().collect());
        }
    }

    /// Strikes a gateway. Nobody waits for what follows.
    pub async fn strike_gateway(&mut self, strike: Strike) -> anyhow::Result<()> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        let since = Instant::now();
        if let Some(exits) = gateways.crew.strike(strike).await? {
            self.exits.extend(exits);
            let is_cut_short = matches!(strike, Strike::Stop(_)) && since.elapsed() > GRACE;
            if is_cut_short || matches!(strike, Strike::Kill(_)) {
                self.evidence.proxied.deaths.push(clock());
            }
        }
        Ok(())
    }

    /// Lets go on what stood still long enough, and starts again what has ended by itself.
    pub(super) fn supervise_gateways(&mut self) -> anyhow::Result<()> {
        let Some(gateways) = &mut self.gateways else { return Ok(()) };
        gateways.crew.thaw()?;
        let exits = gateways.crew.supervise()?;
        self.evidence.proxied.deaths.extend(exits.iter().map(|_| clock()));
        self.exits.extend(exits);
        Ok(())
    }

    /// Waits for the last answers, and until they are stored; ends the gateways, and takes the service's books.
    pub(super) async fn stop_gateways(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        let mut answered = None;
        let mut connection = self.database.connect().await?;
        while self.gateways.is_some() && since.elapsed() < ANSWERED {
            self.supervise()?;
            if self.gateways.as_ref().is_some_and(|gateways| gateways.requester.pending() == 0) {
                let answered = answered.get_or_insert_with(Instant::now);
                self.evidence.proxied.read(&mut connection).await?;
                let is_held = self.evidence.proxied.rows.values().any(|row| row.is_held);
                if !is_held || answered.elapsed() > STORED {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let Some(mut gateways) = self.gateways.take() else { return Ok(()) };
        let (_, exits) = gateways.crew.end().await?;
        self.exits.extend(exits);
        let proxied = &mut self.evidence.proxied;
        proxied.requests = gateways.requester.answers();
        proxied.calls = gateways.service.calls();
        self.evidence.proxied.read(&mut connection).await
    }
}
