//! Clients that ask over HTTP for what others send as messages, as impatient as real ones: they hang up, ask two servers at once, and ask
//! again until they know. Some speak HTTP/1.0, some are pages in browsers, which keep their connections.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::checker::{Class, HttpAnswer, Intent, Requests, Sent};

/// Requests at once.
const CLIENTS: usize = 12;
/// For one answer.
const TRY: Duration = Duration::from_secs(3);
/// For an answer that is final.
const PATIENCE: Duration = Duration::from_secs(60);
/// Until the next try, where the answer does not say.
const PAUSE: Duration = Duration::from_millis(200);
/// Most that is waited before the next try.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// One client in so many hangs up on its first try, one in so many asks two servers at once.
const ODD: usize = 4;
/// Where pages come from.
const ORIGIN: &str = "https://app.example";

/// Where to ask.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) path: &'static str,
    /// Pages of another origin may ask there, and read all that they are answered.
    pub(super) is_for_pages: bool,
}

/// What a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// A connection for each try.
    Plain,
    /// The same, with HTTP/1.0: an answer may end with its connection.
    Old,
    /// A page: its browser keeps connections, says where the page is from, and asks first whether it may ask.
    Page,
}

impl Manner {
    /// In turn.
    fn of(number: usize) -> Self {
        [Self::Plain, Self::Old, Self::Page][number % 3]
    }
}

/// See the module. Its clients end with it.
#[derive(Debug)]
pub(super) struct Requester {
    queue: mpsc::UnboundedSender<Intent>,
    pending: Arc<AtomicUsize>,
    answers: Arc<Mutex<Requests>>,
    clients: Vec<JoinHandle<()>>,
}

impl Requester {
    /// `sent`: the books of whoever publishes messages.
    pub(super) fn start(target: &Target, sent: &Arc<Mutex<Sent>>, seed: u64) -> Self {
        let (queue, intents) = mpsc::unbounded_channel();
        let intents = Arc::new(tokio::sync::Mutex::new(intents));
        let pending = Arc::new(AtomicUsize::new(0));
        let answers = Arc::new(Mutex::new(Requests::default()));
        let clients = (0..CLIENTS).map(|number| {
            let (target, sent, answers) = (target.clone(), sent.clone(), answers.clone());
            let client = Client { target, manner: Manner::of(number), sent, answers, kept: Mutex::default() };
            let (intents, left) = (intents.clone(), pending.clone());
            let mut random = Rng::with_seed(seed.wrapping_add(number as u64));
            tokio::spawn(async move {
                loop {
                    let Some(intent) = intents.lock().await.recv().await else { return };
                    client.ask(&intent, &mut random).await;
                    left.fetch_sub(1, Ordering::SeqCst);
                }
            })
        });
        Self { clients: clients.collect(), queue, pending, answers }
    }

    pub(super) fn ask(&self, intents: Vec<Intent>) {
        self.pending.fetch_add(intents.len(), Ordering::SeqCst);
        for intent in intents {
            // The clients end only with this value.
            let _ = self.queue.send(intent);
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::SeqCst)
    }

    pub(super) fn answers(&self) -> Requests {
        lock(&self.answers).clone()
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        self.clients.iter().for_each(JoinHandle::abort);
    }
}

struct Client {
    target: Target,
    manner: Manner,
    sent: Arc<Mutex<Sent>>,
    answers: Arc<Mutex<Requests>>,
    /// Connections that a browser has kept.
    kept: Mutex<BTreeMap<SocketAddr, Open>>,
}

/// A connection. Dropped, it is closed.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    _driven: AbortOnDropHandle<()>,
}

/// What a client makes of an answer.
enum Next {
    Known(Class),
    Again(Duration),
}

impl Client {
    /// Asks until it knows, or has no patience left.
    async fn ask(&self, intent: &Intent, random: &mut Rng) {
        lock(&self.sent).intend(intent);
        lock(&self.answers).asked += 1;
        let mut server = random.usize(0..self.target.servers.len());
        let began = Instant::now();
        let mut class = match random.usize(0..ODD) {
            0 => {
                let soon = Duration::from_millis(random.u64(0..30));
                let _ = tokio::time::timeout(soon, self.ask_once(server, intent)).await;
                None
            }
            1 => {
                let both = tokio::join!(self.ask_once(server, intent), self.ask_once(server + 1, intent));
                match both {
                    (Next::Known(class), _) | (_, Next::Known(class)) => Some(class),
                    _ => None,
                }
            }
            _ => None,
        };
        while class.is_none() && began.elapsed() < PATIENCE {
            match self.ask_once(server, intent).await {
                Next::Known(known) => class = Some(known),
                Next::Again(pause) => {
                    tokio::time::sleep(pause).await;
                    server += 1;
                }
            }
        }
        lock(&self.sent).learn(intent, class.unwrap_or(Class::Unknown));
    }

    async fn ask_once(&self, server: usize, intent: &Intent) -> Next {
        lock(&self.answers).tries += 1;
        let server = self.target.servers[server % self.target.servers.len()];
        let Ok(Ok((answer, headers))) = tokio::time::timeout(TRY, self.exchange(server, intent)).await else {
            return Next::Again(PAUSE);
        };
        lock(&self.answers).learn(intent, &answer);
        let allows = headers.get("access-control-allow-origin");
        if self.asks_across() && !allows.is_some_and(|origin| origin == ORIGIN || origin == "*") {
            lock(&self.answers).learn_withheld(intent, answer.status);
        }
        let pause = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let pause = pause.map_or(PAUSE, Duration::from_secs).min(LONGEST_PAUSE);
        match answer.status {
            _ if answer.is_taken() => Next::Known(Class::Confirmed),
            // The key is another payload's: this one has no effect, whatever became of the tries before.
            _ if answer.is_conflict() => Next::Known(Class::Refused),
            409 if answer.problem.as_deref() == Some("in-flight") => Next::Again(pause),
            500 | 503 => Next::Again(pause),
            _ => Next::Known(Class::Unknown),
        }
    }

    /// Is it a page that asks another origin?
    fn asks_across(&self) -> bool {
        self.manner == Manner::Page && self.target.is_for_pages
    }

    /// One request and its answer, read to its end.
    async fn exchange(&self, server: SocketAddr, intent: &Intent) -> anyhow::Result<(HttpAnswer, HeaderMap)> {
        let kept = lock(&self.kept).remove(&server).filter(|open| !open.sender.is_closed());
        let mut open = match kept {
            Some(open) => open,
            None => self.connect(server).await?,
        };
        let mut request = http::Request::post(self.target.path)
            .header("host", "judge")
            .header("authorization", "Bearer judge")
            .header("x-tenant-id", &intent.tenant)
            .header("idempotency-key", &intent.key)
            .header("content-type", "application/json");
        match self.manner {
            Manner::Plain => {}
            Manner::Old => request = request.version(Version::HTTP_10),
            Manner::Page => request = request.header("origin", ORIGIN),
        }
        let request = request.body(Full::new(Bytes::from(intent.body.clone())))?;
        let (head, body) = open.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes().to_vec();
        let is_said = |name: &str| head.headers.get(name).is_some_and(|value| value == "true");
        let answer = HttpAnswer {
            status: head.status.as_u16(),
            problem: problem(&body),
            replayed: is_said("idempotent-replayed"),
            body: (!is_said("oncely-body-omitted")).then_some(body),
        };
        if self.manner == Manner::Page {
            lock(&self.kept).insert(server, open);
        }
        Ok((answer, head.headers))
    }

    async fn connect(&self, server: SocketAddr) -> anyhow::Result<Open> {
        let stream = TcpStream::connect(server).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let driven = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        let mut open = Open { sender, _driven: driven };
        if self.asks_across() {
            let may_i = http::Request::options(self.target.path)
                .header("host", "judge")
                .header("origin", ORIGIN)
                .header("access-control-request-method", "POST")
                .header("access-control-request-headers", "authorization, content-type, idempotency-key");
            let said = open.sender.send_request(may_i.body(Full::default())?).await?;
            anyhow::ensure!(said.status().is_success(), "it may not: {}", said.status());
            drop(said.into_body().collect().await?);
            open.sender.ready().await?;
        }
        Ok(open)
    }
}

/// The last part of a problem's type, where the body is a problem.
fn problem(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(problem["type"].as_str()?.rsplit(':').next()?.to_owned())
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
