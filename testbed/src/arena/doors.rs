//! Servers behind the HTTP door, whose requests take the effects that messages take: processes and faults of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::Arena;
use super::crew::{Crew, Strike};
use super::member::Member;
use super::requester::{Requester, Target};
use crate::checker::{Intent, Order};
use crate::{eventually_within, free_port};

/// Processes.
const MEMBERS: usize = 2;
/// Until they listen.
const LISTENS: Duration = Duration::from_secs(20);
/// Longest wait for the clients' last answers.
const ANSWERED: Duration = Duration::from_secs(70);

/// See the module.
#[derive(Debug)]
pub(super) struct Doors {
    crew: Crew,
    /// Whoever asks for work in PostgreSQL.
    requester: Requester,
    /// Whoever asks for what runs under leases.
    orderer: Option<Requester>,
}

impl Doors {
    pub(super) fn pending(&self) -> usize {
        self.requester.pending()
    }

    pub(super) fn stands_still(&self) -> bool {
        self.crew.stands_still()
    }

    /// The same of orders, which take their time.
    pub(super) fn pending_orders(&self) -> usize {
        self.orderer.as_ref().map_or(0, Requester::pending)
    }
}

impl Arena {
    /// Starts the servers and their clients; after what runs under leases, if that is to be asked for, too.
    pub async fn start_doors(&mut self, seed: u64) -> anyhow::Result<()> {
        let urls = self.database_urls();
        let (mut members, mut addresses) = (Vec::new(), Vec::new());
        for number in 1..=MEMBERS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            let mut config = self.config.clone();
            let more = [("LISTEN", address.to_string()), ("CONSUMER", config.consumer.clone())];
            config.environment.extend(more.map(|(name, value)| (name.to_owned(), value)));
            let provider = self.charging.as_ref().map(|charging| charging.provider().to_string());
            config.environment.extend(provider.map(|provider| ("PROVIDER".to_owned(), provider)));
            let member = Member::start(&config, self.folder(), "taking", number, &urls, &self.database);
            members.push(member.await?);
            let listens = async || tokio::net::TcpStream::connect(address).await.map(drop);
            eventually_within(LISTENS, "a server behind the door listens", listens).await?;
            addresses.push(address);
        }
        let target = |path| Target { servers: addresses.clone(), path, is_for_pages: false };
        let orderer = self
            .charging
            .as_ref()
            .map(|charging| Requester::start(&target("/order"), &charging.books(), seed.wrapping_mul(31)));
        let requester = Requester::start(&target("/take"), &self.publisher.books(), seed);
        self.doors = Some(Doors { crew: Crew::new(members), requester, orderer });
        Ok(())
    }

    /// Asks for these over HTTP, in the background.
    pub fn request(&self, intents: Vec<Intent>) {
        if let Some(doors) = &self.doors {
            doors.requester.ask(intents);
        }
    }

    /// Asks for these orders over HTTP, in the background.
    pub fn request_orders(&self, orders: &[Order]) {
        if let Some(orderer) = self.doors.as_ref().and_then(|doors| doors.orderer.as_ref()) {
            orderer.ask(orders.iter().map(Order::intent).collect());
        }
    }

    /// Strikes a server behind the door. Nobody waits for what follows.
    pub async fn strike_door(&mut self, strike: Strike) -> anyhow::Result<()> {
        let now = self.moment();
        let Some(doors) = &mut self.doors else { return Ok(()) };
        if let Some(exits) = doors.crew.strike(strike).await? {
            self.exits.extend(exits);
            self.evidence.leases.note_strike(strike, now);
        }
        Ok(())
    }

    /// Lets go on what stood still long enough, and starts again what has ended by itself.
    pub(super) fn supervise_doors(&mut self) -> anyhow::Result<()> {
        let now = self.moment();
        let Some(doors) = &mut self.doors else { return Ok(()) };
        let leases = &mut self.evidence.leases;
        leases.freezes.extend(doors.crew.thaw()?);
        let exits = doors.crew.supervise()?;
        leases.interruptions.extend(exits.iter().map(|_| now));
        self.exits.extend(exits);
        Ok(())
    }

    /// Waits for the last answers, and ends the servers.
    pub(super) async fn stop_doors(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        let wait = |doors: &Doors| doors.pending() + doors.pending_orders() > 0;
        while self.doors.as_ref().is_some_and(wait) && since.elapsed() < ANSWERED {
            self.supervise()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let Some(mut doors) = self.doors.take() else { return Ok(()) };
        let (stood, exits) = doors.crew.end().await?;
        self.exits.extend(exits);
        self.evidence.leases.freezes.extend(stood);
        self.evidence.requests = doors.requester.answers();
        if let Some(orderer) = &doors.orderer {
            self.evidence.leases.requests = orderer.answers();
        }
        Ok(())
    }
}
