//! Calls the functions of a lease store in Redis or Valkey (7 or later), and keeps their connection.

use std::collections::HashMap;
use std::sync::Arc;

use redis::{FromRedisValue as _, Value};
use tokio::sync::RwLock;

use super::connect::connect;
use super::connection::{RESPONSE_TIMEOUT, RedisConnection};
use super::error::MirrorError;
use oncely_config::MirrorSettings;

/// A library of functions in the Redis that keeps the leases. Clones share one connection.
#[derive(Clone)]
pub struct Library {
    settings: MirrorSettings,
    name: String,
    code: String,
    connection: Arc<RwLock<Option<RedisConnection>>>,
}

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
        Self { settings, name, code, connection: Arc::default() }
    }

    /// Connects if necessary; checks that the server may keep leases, and loads the functions if they are missing.
    pub async fn open(&self) -> Result<(), LibraryError> {
        self.connect().await.map(drop)
    }

    /// Calls a function on one key.
    pub async fn call(
        &self,
        function: &str,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Vec<ReplyPart>, LibraryError> {
        let mut connection = self.connect().await?;
        let mut command = redis::cmd("FCALL");
        command.arg(format!("{}_{function}", self.name)).arg(1).arg(key);
        for argument in arguments {
            command.arg(*argument);
        }
        let result = wait_for_answer(command.query_async::<Vec<Value>>(&mut connection.connection)).await;
        match result {
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
            Err(error) => {
                // After any error the next call connects and checks again. A late response must not be taken for another call's.
                *self.connection.write().await = None;
                Err(error)
            }
        }
    }

    /// Returns the connection; without one, connects, checks the server and loads the functions.
    async fn connect(&self) -> Result<RedisConnection, LibraryError> {
        if let Some(connection) = &*self.connection.read().await {
            return Ok(connection.clone());
        }
        // Held while connecting, so that concurrent calls don't connect as well.
        let mut slot = self.connection.write().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let mut connection = connect(&self.settings).await?;
        check_server(&mut connection).await?;
        self.load(&mut connection).await?;
        Ok(slot.insert(connection).clone())
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
async fn check_server(connection: &mut RedisConnection) -> Result<(), LibraryError> {
    let info = wait_for_answer(redis::cmd("INFO").query_async::<String>(&mut connection.connection)).await?;
    let facts = super::server::parse_info(&info);
    if facts.policy != "noeviction" {
        return Err(LibraryError::Unfit(format!(
            "Redis evicts keys when its memory is full (maxmemory-policy {}), and leases with them: set maxmemory-policy noeviction, or \
             name a server that has it (the mirror's may evict, so it is not that one)",
            facts.policy
        )));
    }
    if facts.is_cluster {
        return Err(LibraryError::Unfit(
            "Redis is a node of a cluster: name one that keeps all keys itself".to_owned(),
        ));
    }
    if facts.is_replica {
        return Err(MirrorError::NoMaster.into());
    }
    Ok(())
}

/// Waits for the response to a request for up to [`RESPONSE_TIMEOUT`].
async fn wait_for_answer<T>(request: impl Future<Output = redis::RedisResult<T>>) -> Result<T, LibraryError> {
    match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(MirrorError::Budget(RESPONSE_TIMEOUT).into()),
    }
}
