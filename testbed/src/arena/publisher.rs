//! Publishes in the background, and keeps books of what the broker said: confirmed, refused, or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::mpsc;

use crate::checker::{Class, Intent, Key, Sent};

/// For one confirm: longer than any alarm lasts.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where messages go.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

impl Address {
    /// A queue, by its name alone.
    pub(super) fn queue(name: &str) -> Self {
        Self { exchange: String::new(), routing_key: name.to_owned() }
    }
}

/// A publisher as a careful producer has it: an unconfirmed message is sent again, most of the time.
#[derive(Debug)]
pub(super) struct Publisher {
    queue: mpsc::UnboundedSender<Vec<Intent>>,
    pending: Arc<AtomicUsize>,
    sent: Arc<Mutex<Sent>>,
    /// What it has sent itself: keys, and whether the broker has confirmed one of their messages.
    own: Arc<Mutex<BTreeMap<Key, bool>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Publisher {
    /// One connection for each of the nodes at `urls`, which goes to another one where its own is away. `window`: how many are in flight on it
    /// at once.
    pub(super) fn start(urls: Vec<String>, to: &Address, window: usize) -> Self {
        let (sender, chunks) = mpsc::unbounded_channel::<Vec<Intent>>();
        let chunks = Arc::new(tokio::sync::Mutex::new(chunks));
        let pending = Arc::new(AtomicUsize::new(0));
        let sent = Arc::new(Mutex::new(Sent::default()));
        let own: Arc<Mutex<BTreeMap<Key, bool>>> = Arc::default();
        let tasks = (0..urls.len()).map(|number| {
            let (left, books, chunks) = (Arc::clone(&pending), Arc::clone(&sent), Arc::clone(&chunks));
            let (urls, to, own) = (urls.clone(), to.clone(), Arc::clone(&own));
            tokio::spawn(async move {
                let mut line = Line { urls, node: number, to, open: None, given_up: 0, own };
                loop {
                    let Some(chunk) = chunks.lock().await.recv().await else { return };
                    for window in chunk.chunks(window) {
                        line.send(window, &books).await;
                        left.fetch_sub(window.len(), Ordering::SeqCst);
                    }
                }
            })
        });
        Self { tasks: tasks.collect(), queue: sender, pending, sent, own }
    }

    pub(super) fn publish(&self, intents: Vec<Intent>) {
        self.pending.fetch_add(intents.len(), Ordering::SeqCst);
        // The task ends only with this value.
        let _ = self.queue.send(intents);
    }

    /// Its books, for others who send the same.
    pub(super) fn books(&self) -> Arc<Mutex<Sent>> {
        Arc::clone(&self.sent)
    }

    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::SeqCst)
    }

    /// What must have an effect, by tenant.
    pub(super) fn due_by_tenant(&self) -> BTreeMap<String, u64> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).due_by_tenant()
    }

    /// Keys of these tenants of which the broker has a copy, and since when.
    pub(super) fn confirmed_of(&self, tenants: &[&str]) -> Vec<(Key, Instant)> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |tenant| sent.confirmed_of(tenant).map(|(key, since)| (key.clone(), since));
        tenants.iter().copied().flat_map(of).collect()
    }

    /// Keys that it has sent itself, and those of them of which the broker has a message.
    pub(super) fn own(&self) -> (BTreeSet<Key>, BTreeSet<Key>) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let confirmed = own.iter().filter(|(_, confirmed)| **confirmed).map(|(key, _)| key.clone());
        (own.keys().cloned().collect(), confirmed.collect())
    }

    pub(super) fn sent(&self) -> Sent {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

struct Line {
    urls: Vec<String>,
    /// Which of them it is at.
    node: usize,
    to: Address,
    own: Arc<Mutex<BTreeMap<Key, bool>>>,
    open: Option<(Connection, Channel)>,
    /// Unknown ones so far: each third is not sent again, so that the class is not empty.
    given_up: usize,
}

impl Line {
    /// Sends until each is confirmed, or stays unknown on purpose.
    async fn send(&mut self, window: &[Intent], books: &Mutex<Sent>) {
        let mut todo: Vec<Intent> = window.to_vec();
        while !todo.is_empty() {
            if self.open.is_none() {
                self.open = self.connect().await.ok();
            }
            let Some((_, channel)) = &self.open else {
                self.node = (self.node + 1) % self.urls.len();
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let classes = publish(channel, &self.to, &todo, books).await;
            if classes.iter().any(|class| *class != Class::Confirmed) {
                // Whatever went wrong, the next confirm must not be taken for an earlier publish's.
                self.open = None;
                self.node = (self.node + 1) % self.urls.len();
            }
            let mut again = Vec::new();
            for (intent, class) in todo.into_iter().zip(classes) {
                books.lock().unwrap_or_else(PoisonError::into_inner).learn(&intent, class);
                let key = (intent.tenant.clone(), intent.key.clone());
                *self.own.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(false) |=
                    class == Class::Confirmed;
                match class {
                    Class::Confirmed => {}
                    Class::Refused => again.push(intent),
                    Class::Unknown => {
                        self.given_up += 1;
                        if !self.given_up.is_multiple_of(3) {
                            again.push(intent);
                        }
                    }
                }
            }
            todo = again;
            if !todo.is_empty() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    async fn connect(&self) -> anyhow::Result<(Connection, Channel)> {
        let opening = async {
            let connection =
                Connection::connect(&self.urls[self.node], ConnectionProperties::default()).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            anyhow::Ok((connection, channel))
        };
        tokio::time::timeout(Duration::from_secs(10), opening).await?
    }
}

/// One window: the broker's word for each.
async fn publish(channel: &Channel, to: &Address, intents: &[Intent], books: &Mutex<Sent>) -> Vec<Class> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let mut waiting = Vec::with_capacity(intents.len());
    for intent in intents {
        books.lock().unwrap_or_else(PoisonError::into_inner).intend(intent);
        let mut headers = FieldTable::default();
        headers.insert("x-tenant-id".into(), AMQPValue::LongString(intent.tenant.as_str().into()));
        let properties = BasicProperties::default()
            .with_message_id(intent.key.as_str().into())
            .with_headers(headers)
            .with_delivery_mode(2);
        let (exchange, key) = (to.exchange.as_str().into(), to.routing_key.as_str().into());
        let publishing = channel.basic_publish(exchange, key, options, &intent.body, properties);
        waiting.push(tokio::time::timeout(PATIENCE, publishing).await.ok().and_then(Result::ok));
    }
    let mut classes = Vec::with_capacity(intents.len());
    let mut returned = false;
    for confirm in waiting {
        classes.push(match confirm {
            // Perhaps written, perhaps not.
            None => Class::Unknown,
            Some(confirm) => match tokio::time::timeout(PATIENCE, confirm).await {
                Ok(Ok(confirmation)) if confirmation.is_ack() => {
                    returned |= confirmation.take_message().is_some();
                    Class::Confirmed
                }
                Ok(Ok(confirmation)) if confirmation.is_nack() => Class::Refused,
                _ => Class::Unknown,
            },
        });
    }
    if returned {
        // The client library may hand a return to another publish of the window: none of them counts.
        classes.iter_mut().for_each(|class| *class = Class::Unknown);
    }
    classes
}
