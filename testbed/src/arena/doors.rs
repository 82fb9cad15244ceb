//! Servers behind the HTTP door, whose requests take the effects that messages take: processes and faults of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use super::Arena;
use super::crew::{Crew, Strike};
use super::member::Member;
use super::requester::Requester;
use crate::checker::{Intent, Requests};
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
    requester: Requester,
}

impl Doors {
    pub(super) fn pending(&self) -> usize {
        self.requester.pending()
    }
}

impl Arena {
    /// Starts the servers and their clients.
    pub async fn start_doors(&mut self, seed: u64) -> anyhow::Result<()> {
        let urls = self.database_urls();
        let (mut members, mut addresses) = (Vec::new(), Vec::new());
        for number in 1..=MEMBERS {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            let mut config = self.config.clone();
            let more = [("LISTEN", address.to_string()), ("CONSUMER", config.consumer.clone())];
            config.environment.extend(more.map(|(name, value)| (name.to_owned(), value)));
            let member = Member::start(&config, self.folder(), "taking", number, &urls, &self.database);
            members.push(member.await?);
            let listens = async || tokio::net::TcpStream::connect(address).await.map(drop);
            eventually_within(LISTENS, "a server behind the door listens", listens).await?;
            addresses.push(address);
        }
        let requester = Requester::start(addresses, self.publisher.books(), seed);
        self.doors = Some(Doors { crew: Crew::new(members), requester });
        Ok(())
    }

    /// Asks for these over HTTP, in the background.
    pub fn request(&self, intents: Vec<Intent>) {
        if let Some(doors) = &self.doors {
            doors.requester.ask(intents);
        }
    }

    /// Strikes a server behind the door. Nobody waits for what follows.
    pub async fn strike_door(&mut self, strike: Strike) -> anyhow::Result<()> {
        if let Some(doors) = &mut self.doors {
            self.exits.extend(doors.crew.strike(strike).await?.unwrap_or_default());
        }
        Ok(())
    }

    /// Lets go on what stood still long enough, and starts again what has ended by itself.
    pub(super) fn supervise_doors(&mut self) -> anyhow::Result<()> {
        if let Some(doors) = &mut self.doors {
            doors.crew.thaw()?;
            self.exits.extend(doors.crew.supervise()?);
        }
        Ok(())
    }

    /// Waits for the last answers, and ends the servers.
    pub(super) async fn stop_doors(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        while self.doors.as_ref().is_some_and(|doors| doors.pending() > 0) && since.elapsed() < ANSWERED {
            self.supervise()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let Some(mut doors) = self.doors.take() else { return Ok(()) };
        self.exits.extend(doors.crew.end().await?.1);
        self.evidence.requests = doors.requester.answers();
        Ok(())
    }

    /// The clients' books so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.doors.as_ref().map_or_else(|| self.evidence.requests.clone(), |doors| doors.requester.answers())
    }
}
