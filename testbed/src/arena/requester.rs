//! Clients that ask over HTTP for what others send as messages, as impatient as real ones: they hang up, ask two servers at once, and ask
//! again until they know.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use http::header::RETRY_AFTER;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

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

/// See the module. Its clients end with it.
#[derive(Debug)]
pub(super) struct Requester {
    queue: mpsc::UnboundedSender<Intent>,
    pending: Arc<AtomicUsize>,
    answers: Arc<Mutex<Requests>>,
    clients: Vec<JoinHandle<()>>,
}

impl Requester {
    /// `servers`: where the door is, and at which path. `sent`: the books of whoever publishes messages.
    pub(super) fn start(
        servers: Vec<SocketAddr>,
        path: &'static str,
        sent: Arc<Mutex<Sent>>,
        seed: u64,
    ) -> Self {
        let (queue, intents) = mpsc::unbounded_channel();
        let intents = Arc::new(tokio::sync::Mutex::new(intents));
        let pending = Arc::new(AtomicUsize::new(0));
        let answers = Arc::new(Mutex::new(Requests::default()));
        let clients = (0..CLIENTS).map(|number| {
            let (servers, sent, answers) = (servers.clone(), sent.clone(), answers.clone());
            let client = Client { servers, path, sent, answers };
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
    servers: Vec<SocketAddr>,
    path: &'static str,
    sent: Arc<Mutex<Sent>>,
    answers: Arc<Mutex<Requests>>,
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
        let mut server = random.usize(0..self.servers.len());
        let began = Instant::now();
        let mut class = match random.usize(0..ODD) {
            0 => {
                let soon = Duration::from_millis(random.u64(0..30));
                let _ = tokio::time::timeout(soon, self.once(server, intent)).await;
                None
            }
            1 => {
                let both = tokio::join!(self.once(server, intent), self.once(server + 1, intent));
                match both {
                    (Next::Known(class), _) | (_, Next::Known(class)) => Some(class),
                    _ => None,
                }
            }
            _ => None,
        };
        while class.is_none() && began.elapsed() < PATIENCE {
            match self.once(server, intent).await {
                Next::Known(known) => class = Some(known),
                Next::Again(pause) => {
                    tokio::time::sleep(pause).await;
                    server += 1;
                }
            }
        }
        lock(&self.sent).learn(intent, class.unwrap_or(Class::Unknown));
    }

    async fn once(&self, server: usize, intent: &Intent) -> Next {
        lock(&self.answers).tries += 1;
        let server = self.servers[server % self.servers.len()];
        let Ok(Ok((answer, pause))) = tokio::time::timeout(TRY, exchange(server, self.path, intent)).await
        else {
            return Next::Again(PAUSE);
        };
        lock(&self.answers).learn(intent, &answer);
        match answer.status {
            _ if answer.is_taken() => Next::Known(Class::Confirmed),
            // The key is another payload's: this one has no effect, whatever became of the tries before.
            _ if answer.is_conflict() => Next::Known(Class::Refused),
            409 if answer.problem.as_deref() == Some("in-flight") => Next::Again(pause),
            500 | 503 => Next::Again(pause),
            _ => Next::Known(Class::Unknown),
        }
    }
}

/// One request and its answer, on a connection of their own; and how long the server asks to wait.
async fn exchange(server: SocketAddr, path: &str, intent: &Intent) -> anyhow::Result<(HttpAnswer, Duration)> {
    let request = http::Request::post(path)
        .header("host", "judge")
        .header("x-tenant-id", &intent.tenant)
        .header("idempotency-key", &intent.key)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(intent.body.clone())))?;
    let stream = TcpStream::connect(server).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let asked = async move {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok());
        let pause = header(RETRY_AFTER.as_str()).and_then(|seconds| seconds.parse().ok());
        let pause = pause.map_or(PAUSE, Duration::from_secs).min(LONGEST_PAUSE);
        let replayed = header("idempotent-replayed") == Some("true");
        let body = body.collect().await?.to_bytes().to_vec();
        let answer = HttpAnswer { status: head.status.as_u16(), problem: problem(&body), replayed, body };
        anyhow::Ok((answer, pause))
    };
    let (answer, _) = tokio::join!(asked, connection);
    answer
}

/// The last part of a problem's type, where the body is a problem.
fn problem(body: &[u8]) -> Option<String> {
    let problem: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(problem["type"].as_str()?.rsplit(':').next()?.to_owned())
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
