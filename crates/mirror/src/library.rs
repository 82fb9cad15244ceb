//! Calls the functions of a lease store in Redis or Valkey (7 or later), and keeps their connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue as _, Value};
use tokio::sync::{OnceCell, RwLock};

use super::cluster::{SlotMap, read_slots, slot_of};
use super::connect::{connect, connect_to_node};
use super::connection::{RESPONSE_TIMEOUT, RedisConnection};
use super::error::MirrorError;
use super::info::parse_info;
use super::sentinel::HostPort;
use oncely_config::MirrorSettings;

/// A library of functions in the Redis that keeps the leases, or in all masters of a cluster. Clones share the connections.
#[derive(Clone)]
pub struct Library {
    settings: MirrorSettings,
    name: String,
    code: String,
    links: Arc<RwLock<Links>>,
}

/// The connections: one, or one to each master of a cluster that has been used.
#[derive(Default)]
struct Links {
    /// Masters of the slots of a cluster, as last read.
    slots: Option<SlotMap>,
    /// Whether a server has answered that a slot has another master since.
    is_stale: bool,
    /// `None` is the only server. A cell is empty while its server is being connected to, which holds up no call to another one.
    by_server: HashMap<Option<HostPort>, Arc<OnceCell<RedisConnection>>>,
}

impl Links {
    /// Returns the server of a key, `None` for the only one; an error if the slots must be read first.
    fn server_of(&self, key: &str) -> Result<Option<HostPort>, MirrorError> {
        let slot = slot_of(key);
        let slots = self.slots.as_ref().filter(|_| !self.is_stale).ok_or(MirrorError::Slots)?;
        slots.master_of(slot).cloned().map(Some).ok_or(MirrorError::UnservedSlot(slot))
    }
}

/// Tries of a call: its key may have moved to another master.
const MAX_TRIES: u32 = 6;

/// Pause before a second redirection is followed, and the growth of later ones: two masters may name each other until both know who has
/// the slot.
const REDIRECTION_PAUSE: Duration = Duration::from_millis(20);

/// One part of a response, a number as text; `None` for nil.
pub type ReplyPart = Option<Vec<u8>>;

/// The reason why a call of a function failed.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The server's configuration must be changed before it can keep leases.
    #[error("{0}")]
    Unfit(String),
    /// The key holds a value of another type.
    #[error("the key is of another type")]
    OtherType,
}

impl From<redis::RedisError> for LibraryError {
    fn from(error: redis::RedisError) -> Self {
        Self::Mirror(error.into())
    }
}

impl Library {
    /// Describes a library `name` defined by `code`; its functions' names begin with that name.
    pub fn new(settings: MirrorSettings, name: String, code: String) -> Self {
        Self { settings, name, code, links: Arc::default() }
    }

    /// Connects if necessary, to all masters of a cluster; checks that each server may keep leases, and loads the functions if they are
    /// missing.
    pub async fn open(&self) -> Result<(), LibraryError> {
        if self.settings.cluster.is_none() {
            return self.connect(None).await.map(drop);
        }
        let slots = read_slots(&self.settings, None).await?;
        for master in slots.masters() {
            self.connect(Some(master.clone())).await?;
        }
        self.links.write().await.slots = Some(slots);
        Ok(())
    }

    /// Calls a function on one key.
    pub async fn call(
        &self,
        function: &str,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Vec<ReplyPart>, LibraryError> {
        let mut command = redis::cmd("FCALL");
        command.arg(format!("{}_{function}", self.name)).arg(1).arg(key);
        for argument in arguments {
            command.arg(*argument);
        }
        match self.query(key, &command).await {
            Ok(parts) => parts
                .into_iter()
                .map(|part| match part {
                    Value::Int(number) => Ok(Some(number.to_string().into_bytes())),
                    part => ReplyPart::from_redis_value(part)
                        .map_err(|error| redis::RedisError::from(error).into()),
                })
                .collect(),
            Err(LibraryError::Mirror(MirrorError::Redis(error))) if error.code() == Some("WRONGTYPE") => {
                Err(LibraryError::OtherType)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a command to the server of its key. A command that is redirected was not executed, and is sent again.
    async fn query(&self, key: &str, command: &redis::Cmd) -> Result<Vec<Value>, LibraryError> {
        let mut tries = 1;
        let mut moved_to = None;
        loop {
            let server = match moved_to.take() {
                Some(target) => Some(target),
                None => self.server_of(key).await?,
            };
            let mut connection = match self.connect(server.clone()).await {
                Ok(connection) => connection,
                Err(error) => {
                    self.forget(&server).await;
                    return Err(error);
                }
            };
            let error = match wait_for_answer(command.query_async::<Vec<Value>>(&mut connection.connection))
                .await
            {
                Err(LibraryError::Mirror(MirrorError::Redis(error))) if error.code() == Some("WRONGTYPE") => {
                    return Err(MirrorError::from(error).into());
                }
                Err(error) => error,
                Ok(parts) => return Ok(parts),
            };
            let (code, target) = match &error {
                LibraryError::Mirror(MirrorError::Redis(error)) => {
                    (error.code().map(str::to_owned), target_of(error, server.as_ref()))
                }
                _ => (None, None),
            };
            match (code.as_deref(), target) {
                // The other nodes may not know of it yet.
                (Some("MOVED"), Some(target)) => {
                    self.links.write().await.is_stale = true;
                    tokio::time::sleep(REDIRECTION_PAUSE * (tries - 1)).await;
                    moved_to = Some(target);
                }
                // Its slot is on the way to another master, which has the key already.
                (Some("ASK"), Some(target)) => return self.ask(target, command).await,
                _ => {
                    self.forget(&server).await;
                    return Err(error);
                }
            }
            if tries == MAX_TRIES {
                return Err(error);
            }
            tries += 1;
        }
    }

    /// Sends a command to the master that takes the slot of its key over.
    async fn ask(&self, target: HostPort, command: &redis::Cmd) -> Result<Vec<Value>, LibraryError> {
        let server = Some(target);
        let answer = async {
            let mut connection = self.connect(server.clone()).await?;
            let mut pipeline = redis::Pipeline::with_capacity(2);
            pipeline.ignore_errors().cmd("ASKING").ignore().add_command(command.clone());
            let request =
                pipeline.query_async::<Vec<redis::RedisResult<Vec<Value>>>>(&mut connection.connection);
            wait_for_answer(request).await
        };
        match answer.await {
            Ok(answers) => match answers.into_iter().next() {
                Some(answer) => Ok(answer?),
                None => Err(MirrorError::Answers(0, 1).into()),
            },
            Err(error) => {
                self.forget(&server).await;
                Err(error)
            }
        }
    }

    /// Closes the connection to a server after an error: the next call connects, checks the server and reads the slots again. A late
    /// response is then not taken for another call's.
    async fn forget(&self, server: &Option<HostPort>) {
        let mut links = self.links.write().await;
        links.by_server.remove(server);
        links.is_stale = true;
    }

    /// Returns the server of a key: `None` for the only one, else the master of its slot in the cluster.
    async fn server_of(&self, key: &str) -> Result<Option<HostPort>, LibraryError> {
        if self.settings.cluster.is_none() {
            return Ok(None);
        }
        if let Ok(server) = self.links.read().await.server_of(key) {
            return Ok(server);
        }
        let mut links = self.links.write().await;
        // Another call may have read them meanwhile.
        if let Ok(server) = links.server_of(key) {
            return Ok(server);
        }
        links.slots = Some(read_slots(&self.settings, links.slots.as_ref()).await?);
        links.is_stale = false;
        Ok(links.server_of(key)?)
    }

    /// Returns the connection to a server; without one, connects, checks the server and loads the functions.
    async fn connect(&self, server: Option<HostPort>) -> Result<RedisConnection, LibraryError> {
        let found = self.links.read().await.by_server.get(&server).cloned();
        let cell = match found {
            Some(cell) => cell,
            None => Arc::clone(self.links.write().await.by_server.entry(server.clone()).or_default()),
        };
        // Concurrent calls wait for one connection.
        let connection = cell.get_or_try_init(|| async {
            let mut connection = match &server {
                None => connect(&self.settings).await?,
                Some(server) => connect_to_node(&self.settings, server).await?,
            };
            check_server(&mut connection, self.settings.cluster.is_some()).await?;
            self.load(&mut connection).await?;
            Ok::<_, LibraryError>(connection)
        });
        connection.await.cloned()
    }

    /// Loads the functions unless they are loaded; if they are, the right to load is not needed. Functions are global to the server: a user
    /// who may load them could put code under the library's name, which would be called with the rights of Oncely's user.
    async fn load(&self, connection: &mut RedisConnection) -> Result<(), LibraryError> {
        if self.is_loaded(connection).await? {
            return Ok(());
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&self.code);
        let loaded = wait_for_answer(load.query_async::<()>(&mut connection.connection)).await;
        // Another process may have loaded it in the meantime.
        if self.is_loaded(connection).await? { Ok(()) } else { loaded }
    }

    /// Returns whether exactly this code is loaded.
    ///
    /// # Errors
    /// If other code has the library's name: [`LibraryError::Unfit`].
    async fn is_loaded(&self, connection: &mut RedisConnection) -> Result<bool, LibraryError> {
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg(&self.name).arg("WITHCODE");
        let libraries =
            wait_for_answer(list.query_async::<Vec<HashMap<String, Value>>>(&mut connection.connection))
                .await?;
        let Some(library) = libraries.first() else { return Ok(false) };
        let code = library.get("library_code").and_then(|code| String::from_redis_value_ref(code).ok());
        if code.as_deref() == Some(self.code.as_str()) {
            return Ok(true);
        }
        Err(LibraryError::Unfit(format!(
            "the library {} in Redis has other code than Oncely's, so another client has loaded it: find out who may (ACL +function), then \
             FUNCTION DELETE {}",
            self.name, self.name
        )))
    }
}

/// Checks the server's configuration. A server that evicts keys when its memory is full would let effects happen twice.
async fn check_server(connection: &mut RedisConnection, is_in_cluster: bool) -> Result<(), LibraryError> {
    let info = wait_for_answer(redis::cmd("INFO").query_async::<String>(&mut connection.connection)).await?;
    let facts = parse_info(&info);
    if facts.policy != "noeviction" {
        return Err(LibraryError::Unfit(format!(
            "Redis evicts keys when its memory is full (maxmemory-policy {}), and leases with them: set maxmemory-policy noeviction, or \
             name a server that has it (the mirror's may evict, so it is not that one)",
            facts.policy
        )));
    }
    if facts.is_cluster != is_in_cluster {
        let text = match facts.is_cluster {
            true => {
                "Redis is a node of a cluster: set RedisSettings::cluster, or name one that keeps all keys itself"
            }
            false => "Redis is no node of a cluster: leave out RedisSettings::cluster",
        };
        return Err(LibraryError::Unfit(text.to_owned()));
    }
    if facts.is_replica {
        return Err(MirrorError::NoMaster.into());
    }
    Ok(())
}

/// Returns the address that a redirection names: `host:port`, where the host may be an IPv6 address, or empty for the one that was asked.
fn target_of(redirection: &redis::RedisError, asked: Option<&HostPort>) -> Option<HostPort> {
    let (host, port) = redirection.redirect_node()?.0.rsplit_once(':')?;
    let host = match host.trim_matches(['[', ']']) {
        "" => asked?.0.as_str(),
        host => host,
    };
    Some((host.to_owned(), port.parse().ok()?))
}

/// Waits for the response to a request for up to [`RESPONSE_TIMEOUT`].
async fn wait_for_answer<T>(request: impl Future<Output = redis::RedisResult<T>>) -> Result<T, LibraryError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT).into()),
    }
}
