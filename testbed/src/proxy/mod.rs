//! A TCP proxy between one program and one server, to be the network's bad days: silent, slow, torn, half-closed, cut; and
//! with an eye for the protocol, so that exactly the reply to a COMMIT or exactly an acknowledgement is what gets lost.

mod connection;
mod frames;
mod pump;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ports;

/// What is spoken through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Bytes.
    Plain,
    /// PostgreSQL's frontend/backend protocol, without TLS.
    Postgres,
    /// AMQP 0-9-1, without TLS.
    Amqp,
}

/// One way through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// How the network is, for connections that exist and for new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As it should be.
    Pass,
    /// Connections open, and nothing comes through. What was sent meanwhile arrives when the mode changes, as TCP's
    /// retransmissions would have it.
    BlackHole,
    /// Each piece waits so long.
    Delay(Duration),
    /// So many bytes a second, each way of each connection.
    Throttle(u32),
    /// New connections are reset; those that exist go on.
    Refuse,
    /// The server's bytes are replaced by bytes of no protocol (128 to 255, so that no number becomes another).
    Garble,
    /// After so many more bytes this way, in all connections together, all connections are reset: in the middle of a frame.
    CutAfter(Direction, u32),
}

/// A fault that strikes once, at the next frame of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneShot {
    /// PostgreSQL gets the COMMIT and answers; the answer is lost and the connection reset.
    LoseCommitReply,
    /// The connection is reset before PostgreSQL gets the COMMIT.
    CutBeforeCommit,
    /// An acknowledgement to the broker (Basic.Ack) is lost, and the connection reset.
    LoseAck,
    /// The broker's confirm (Basic.Ack) of a publish is lost, and the connection reset.
    LoseConfirm,
    /// A publish (Basic.Publish) is lost, and the connection reset.
    LosePublish,
}

/// A listening proxy; dropped, it stops and resets its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

/// What the proxy and its connections share.
#[derive(Debug)]
struct Shared {
    protocol: Protocol,
    upstream: Mutex<SocketAddr>,
    mode: watch::Sender<Mode>,
    /// Counted up: all connections are reset.
    cut: watch::Sender<u64>,
    /// Counted up: all connections are closed towards the client.
    half_close: watch::Sender<u64>,
    /// Counted up: all connections stay open, and nothing comes through them any more.
    forget: watch::Sender<u64>,
    /// Bytes that were sent into such connections.
    forgotten: AtomicU64,
    /// Those that are armed, one after the other.
    one_shots: Mutex<Vec<OneShot>>,
    struck: AtomicU64,
    /// Connections that clients have opened.
    accepted: AtomicU64,
    /// What [`Mode::CutAfter`] still lets through.
    budget: AtomicI64,
}

impl Shared {
    /// Takes an armed fault, if it is this one.
    fn strike(&self, which: OneShot) -> bool {
        let mut armed = self.one_shots.lock().unwrap_or_else(PoisonError::into_inner);
        if armed.pop_if(|next| *next == which).is_none() {
            return false;
        }
        self.struck.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn cut_all(&self) {
        self.cut.send_modify(|generation| *generation += 1);
    }
}

impl Proxy {
    /// Listens on a free port of the loopback and forwards to `upstream`.
    pub async fn start(protocol: Protocol, upstream: SocketAddr) -> anyhow::Result<Self> {
        let port = ports::free_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let shared = Arc::new(Shared {
            protocol,
            upstream: Mutex::new(upstream),
            mode: watch::Sender::new(Mode::Pass),
            cut: watch::Sender::new(0),
            half_close: watch::Sender::new(0),
            forget: watch::Sender::new(0),
            forgotten: AtomicU64::new(0),
            one_shots: Mutex::new(Vec::new()),
            struck: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            budget: AtomicI64::new(0),
        });
        let accepting = Arc::clone(&shared);
        let listening = tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => {
                        accepting.accepted.fetch_add(1, Ordering::Relaxed);
                        tokio::spawn(connection::serve(client, Arc::clone(&accepting)));
                    }
                    // No file descriptor left, for one: the next attempt may find one.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        });
        Ok(Self { port, shared, listening })
    }

    /// Where clients connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Forwards new connections to another server.
    pub fn retarget(&self, upstream: SocketAddr) {
        *self.shared.upstream.lock().unwrap_or_else(PoisonError::into_inner) = upstream;
    }

    /// Changes how the network is.
    pub fn set(&self, mode: Mode) {
        if let Mode::CutAfter(_, bytes) = mode {
            self.shared.budget.store(i64::from(bytes), Ordering::Relaxed);
        }
        self.shared.mode.send_replace(mode);
    }

    /// Resets all connections (RST, both ways).
    pub fn cut(&self) {
        self.shared.cut_all();
    }

    /// Closes all connections towards the client only: it reads the end, and may go on sending.
    pub fn half_close(&self) {
        self.shared.half_close.send_modify(|generation| *generation += 1);
    }

    /// Nothing ever comes through the connections of now again, and nobody is told: a firewall that lost its state. New ones
    /// are well.
    pub fn forget(&self) {
        self.shared.forget.send_modify(|generation| *generation += 1);
    }

    /// How many bytes were sent into connections that were forgotten, from either side.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.shared.forgotten.load(Ordering::Relaxed)
    }

    /// Arms a fault for the next frame of its kind; `None` disarms.
    pub fn arm(&self, one_shot: Option<OneShot>) {
        *self.shared.one_shots.lock().unwrap_or_else(PoisonError::into_inner) =
            one_shot.into_iter().collect();
    }

    /// Arms a fault for the next so many frames of its kind: none gets through between them.
    pub fn arm_times(&self, one_shot: OneShot, times: usize) {
        *self.shared.one_shots.lock().unwrap_or_else(PoisonError::into_inner) = vec![one_shot; times];
    }

    /// How many connections clients have opened.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How often an armed fault has struck.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.shared.struck.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.shared.cut_all();
    }
}
