//! A provider of payments and mails, called over TCP, with books of its own: by what it has seen effects outside PostgreSQL are judged.
//!
//! A call is one line of JSON, and so is its answer; or it is a request, as a service behind a gateway gets them ([`http`]). A connection takes
//! one call. How it behaves the call says itself ([`Order`]), so that a trial is the same for the same seed.
//!
//! [`Order`]: crate::checker::Order

mod http;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::checker::{Answer, Call, Key, Memory, Side};

/// See the module. Ends with this value.
#[derive(Debug)]
pub struct Provider {
    address: SocketAddr,
    books: Arc<Mutex<Books>>,
    listening: JoinHandle<()>,
}

/// What it has seen.
#[derive(Debug, Default)]
struct Books {
    calls: Vec<Call>,
    /// Calls that wait for their answers.
    open: usize,
    /// By the call's key: what it remembers of it, and since when.
    known: HashMap<String, (Settled, f64)>,
}

/// What became of the first call by a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    Done,
    /// The same for ever.
    Refused,
    /// It did not happen, nobody was told, and another call by the key gets the same: as services that store their failures have it.
    Failed,
}

impl Provider {
    /// Listens on a free port.
    pub async fn start() -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("no port for the provider")?;
        let address = listener.local_addr()?;
        let books = Arc::new(Mutex::new(Books::default()));
        let kept = Arc::clone(&books);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let books = Arc::clone(&kept);
                // Whoever calls may go half-way: that is its own matter.
                tokio::spawn(async move { drop(serve(stream, &books).await) });
            }
        });
        Ok(Self { address, books, listening })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many calls wait for their answers.
    #[must_use]
    pub fn open(&self) -> usize {
        lock(&self.books).open
    }

    /// All calls so far, in the order in which they came.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.books).calls.clone()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Every change leaves the books whole.
fn lock(books: &Mutex<Books>) -> std::sync::MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

async fn serve(stream: TcpStream, books: &Mutex<Books>) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    if line.trim_end().ends_with("HTTP/1.1") {
        return http::serve(stream, &line, books).await;
    }
    let asked: Value = serde_json::from_str(&line)?;
    let text = |name: &str| asked[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
    let answer = match asked["ask"].as_str() {
        Some(key) => Some(lock(books).look_up(key)),
        None => {
            let number = |name: &str| asked[name].as_u64().unwrap_or(0);
            let call = Call {
                key: (text("tenant")?, text("key")?),
                side: Side::by_name(&text("step")?).context("no such side")?,
                call_key: text("call_key")?,
                token: asked["token"].as_i64().context("no token")?,
                at: now(),
                answered: None,
                answer: Answer::Done,
            };
            let (_, said) = lock(books).take(call, number("tears"), number("refusals"));
            work(books, number("delay")).await;
            said
        }
    };
    // None: the connection ends without a word.
    if let Some(answer) = answer {
        stream.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

/// Takes its time for a call.
async fn work(books: &Mutex<Books>, millis: u64) {
    lock(books).open += 1;
    tokio::time::sleep(Duration::from_millis(millis)).await;
    lock(books).open -= 1;
}

/// The same number for the same key, and for others another one.
fn number_of(key: &Key) -> u64 {
    let letters = key.0.bytes().chain(key.1.bytes());
    letters.fold(7, |number: u64, letter| number.wrapping_mul(31).wrapping_add(letter.into()))
}

impl Books {
    /// Did a call by this key happen?
    fn look_up(&self, key: &str) -> Value {
        json!({ "known": self.known.get(key).is_some_and(|(settled, _)| *settled == Settled::Done) })
    }

    /// Of each message's calls of a side the first `tears` end without an answer, of the rest the first `refusals` are refused. Returns what it came
    /// to, and what the caller is told.
    fn take(&mut self, mut call: Call, tears: u64, refusals: u64) -> (Answer, Option<Value>) {
        let before = self.calls_before(&call);
        let settled = self.known.get(&call.call_key).copied().filter(|(settled, since)| {
            matches!(settled, Settled::Refused | Settled::Failed)
                || match call.side.memory() {
                    Memory::Ever => true,
                    Memory::For(window) => call.at - since < window.as_secs_f64(),
                    Memory::Never => false,
                }
        });
        let (answer, said) = match settled {
            Some((Settled::Failed, _)) => (Answer::Torn { happened: false }, None),
            Some((Settled::Refused, _)) => (Answer::Refused, Some(json!({ "refused": true }))),
            Some((Settled::Done, _)) if before < tears => (Answer::Torn { happened: false }, None),
            Some((Settled::Done, _)) => (Answer::Known, Some(json!({ "done": call.call_key }))),
            // It happens, or it does not, in turn; which of them first its key says. Nobody is told.
            None if before < tears => {
                (Answer::Torn { happened: (number_of(&call.key) + before).is_multiple_of(2) }, None)
            }
            None if before < tears + refusals => (Answer::Refused, Some(json!({ "refused": true }))),
            None => (Answer::Done, Some(json!({ "done": call.call_key }))),
        };
        let becomes = match answer {
            Answer::Done | Answer::Torn { happened: true } => Some(Settled::Done),
            Answer::Refused => Some(Settled::Refused),
            // Its step is not called again by the same key, unless a person lets it.
            Answer::Torn { happened: false } if call.side == Side::Once => Some(Settled::Failed),
            Answer::Known | Answer::Torn { happened: false } => None,
        };
        if let Some(becomes) = becomes
            && settled.is_none()
        {
            self.known.insert(call.call_key.clone(), (becomes, call.at));
        }
        call.answer = answer;
        self.calls.push(call);
        (answer, said)
    }

    /// How often this side of this message was called before.
    fn calls_before(&self, call: &Call) -> u64 {
        self.calls.iter().filter(|one| one.key == call.key && one.side == call.side).count() as u64
    }
}
