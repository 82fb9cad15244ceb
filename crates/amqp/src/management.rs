//! RabbitMQ's HTTP API (plugin `rabbitmq_management`), for facts that AMQP does not report, such as policies and bindings. Read only.

use std::time::Duration;

#[cfg(feature = "management")]
use base64::Engine as _;
#[cfg(feature = "management")]
use base64::engine::general_purpose::STANDARD;
#[cfg(feature = "management")]
use bytes::Bytes;
#[cfg(feature = "management")]
use http_body_util::{BodyExt as _, Empty, Limited};
#[cfg(feature = "management")]
use hyper::{Request, header::AUTHORIZATION};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use url::Url;

use oncely_config::RabbitSettings;
#[cfg(feature = "management")]
use oncely_net::http_client::Transport;
#[cfg(feature = "management")]
use oncely_net::tls::TlsSettings;
use oncely_net::tls::{TlsError, TlsFault};

/// Errors of the HTTP API. Texts hold no URL.
#[derive(Debug, thiserror::Error)]
pub enum ManagementError {
    #[error("rabbitmq.management is not set")]
    NotSet,
    #[cfg(not(feature = "management"))]
    #[error("this program is built without the feature `management`")]
    NotBuilt,
    #[error("the HTTP API refuses the user (status {0}): it needs the tag management, and the virtual host")]
    Refused(u16),
    #[error("the HTTP API answered with status {0}")]
    Status(u16),
    #[error("the HTTP API: {0}")]
    Away(String),
    #[error("the HTTP API: {0}")]
    Tls(String, TlsFault),
    #[error("the HTTP API's answer can't be read")]
    Unreadable,
}

/// A queue's state in the broker.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct QueueFacts {
    /// `quorum`, `classic`, `stream`.
    #[serde(rename = "type")]
    pub kind: String,
    pub durable: bool,
    pub auto_delete: bool,
    pub exclusive: bool,
    pub(crate) arguments: Map<String, Value>,
    /// Effective policies, merged. RabbitMQ writes an empty list if none applies.
    effective_policy_definition: Value,
}

impl QueueFacts {
    /// Returns a setting by its name without `x-`: the declared one, otherwise that of a policy; `None` without both.
    pub fn setting(&self, name: &str) -> Option<&Value> {
        self.declared_setting(name).or_else(|| self.policy_setting(name))
    }

    /// Returns the lower one of a declared number and that of a policy; `None` without both.
    pub fn lowest_number(&self, name: &str) -> Option<i64> {
        let both = [self.declared_setting(name), self.policy_setting(name)];
        both.into_iter().flatten().filter_map(Value::as_i64).min()
    }

    fn declared_setting(&self, name: &str) -> Option<&Value> {
        self.arguments.get(&format!("x-{name}"))
    }

    /// Returns a policy's value of a setting; `None` if no policy sets it.
    pub fn policy_setting(&self, name: &str) -> Option<&Value> {
        self.effective_policy_definition.get(name)
    }
}

/// A binding of a queue.
#[derive(Clone, Debug, Deserialize)]
pub struct BindingFacts {
    /// Exchange; empty for the default one.
    pub source: String,
    pub routing_key: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// Client of the API for the broker's virtual host.
pub struct Management {
    base: Url,
    vhost: String,
    /// User and password, separated by a colon.
    credentials: SecretString,
    limit: Duration,
    #[cfg(feature = "management")]
    transport: Transport<Empty<Bytes>>,
}

impl From<TlsError> for ManagementError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error.to_string(), TlsFault::Refused)
    }
}

impl Management {
    /// Opens a client of the API at `rabbitmq.management`, as the user of that URL, or else of `rabbitmq.url`: reads the file of the URLs
    /// and the certificates, and connects with the first request. `limit`: the longest wait for a response.
    ///
    /// # Errors
    /// If `rabbitmq.management` is not set, a URL or its file is invalid, or a certificate can't be read.
    pub fn open(settings: &RabbitSettings, limit: Duration) -> Result<Self, ManagementError> {
        let url = settings.management.as_ref().ok_or(ManagementError::NotSet)?;
        let settings = &*settings.reread_urls().map_err(|error| ManagementError::Away(error.to_string()))?;
        let away = |_| ManagementError::Away("rabbitmq.management is not a URL".to_owned());
        let mut base = Url::parse(url.expose_secret()).map_err(away)?;
        let broker: lapin::uri::AMQPUri = settings
            .url
            .expose_secret()
            .parse()
            .map_err(|_| ManagementError::Away("rabbitmq.url is not an AMQP URL".to_owned()))?;
        let decoded =
            |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = match base.username() {
            "" => (broker.authority.userinfo.username, broker.authority.userinfo.password),
            user => (decoded(user), decoded(base.password().unwrap_or_default())),
        };
        let credentials = format!("{user}:{password}");
        // Keeps the credentials out of error texts.
        let bare = base.set_username("").and_then(|()| base.set_password(None));
        bare.map_err(|()| ManagementError::Away("rabbitmq.management is not a URL".to_owned()))?;
        Ok(Self {
            base,
            vhost: broker.vhost,
            credentials: credentials.into(),
            limit,
            #[cfg(feature = "management")]
            transport: create_transport(settings, limit)?,
        })
    }

    /// Queries the broker's version.
    pub async fn query_version(&self) -> Result<String, ManagementError> {
        #[derive(Deserialize)]
        struct BrokerOverview {
            rabbitmq_version: String,
        }
        let overview: Option<BrokerOverview> = self.get(&["overview"]).await?;
        overview.map(|overview| overview.rabbitmq_version).ok_or(ManagementError::Status(404))
    }

    /// Queries a queue's state; `None` if the queue is missing.
    pub async fn query_queue(&self, name: &str) -> Result<Option<QueueFacts>, ManagementError> {
        self.get(&["queues", &self.vhost, name]).await
    }

    /// Queries the bindings of a queue; none if the queue is missing.
    pub async fn query_bindings(&self, queue: &str) -> Result<Vec<BindingFacts>, ManagementError> {
        let bindings: Option<Vec<BindingFacts>> =
            self.get(&["queues", &self.vhost, queue, "bindings"]).await?;
        Ok(bindings.unwrap_or_default())
    }

    /// Queries the type of an exchange; `None` if the exchange is missing.
    pub async fn query_exchange_type(&self, name: &str) -> Result<Option<String>, ManagementError> {
        #[derive(Deserialize)]
        struct Exchange {
            #[serde(rename = "type")]
            kind: String,
        }
        let exchange: Option<Exchange> = self.get(&["exchanges", &self.vhost, name]).await?;
        Ok(exchange.map(|exchange| exchange.kind))
    }

    #[cfg(not(feature = "management"))]
    async fn get<T: DeserializeOwned>(&self, _path: &[&str]) -> Result<Option<T>, ManagementError> {
        let _ = (&self.base, &self.credentials, self.limit);
        Err(ManagementError::NotBuilt)
    }

    /// Requests an object; `None` if it does not exist.
    #[cfg(feature = "management")]
    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>, ManagementError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        let credentials = STANDARD.encode(self.credentials.expose_secret());
        let request = Request::get(url.as_str())
            .header(AUTHORIZATION, format!("Basic {credentials}"))
            .body(Empty::new())
            .map_err(|error| ManagementError::Away(error.to_string()))?;
        let late = |_| ManagementError::Away(format!("no answer within {:?}", self.limit));
        let Some(body) =
            tokio::time::timeout(self.limit, self.send_request(request)).await.map_err(late)??
        else {
            return Ok(None);
        };
        serde_json::from_slice(&body).map(Some).map_err(|_| ManagementError::Unreadable)
    }

    /// Sends a request; returns the response's body, or `None` for status 404.
    #[cfg(feature = "management")]
    async fn send_request(&self, request: Request<Empty<Bytes>>) -> Result<Option<Bytes>, ManagementError> {
        let mut result = self.transport.send(request.clone()).await;
        // With TLS 1.3 a server refuses a client's certificate after the handshake. If it closes the connection before the request is
        // written, the reason is lost: the request is sent again.
        for _ in 0..MAX_UNSENT_RETRIES {
            match &result {
                Err(failed) if failed.is_unsent && failed.fault.is_none() => {
                    result = self.transport.send(request.clone()).await;
                }
                _ => break,
            }
        }
        let response = result.map_err(|failed| match failed.fault {
            Some(fault) => ManagementError::Tls(failed.cause, fault),
            None => ManagementError::Away(failed.cause),
        })?;
        match response.status().as_u16() {
            200..=299 => {}
            404 => return Ok(None),
            status @ (401 | 403) => return Err(ManagementError::Refused(status)),
            status => return Err(ManagementError::Status(status)),
        }
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        body.map(|body| Some(body.to_bytes())).map_err(|error| ManagementError::Away(error.to_string()))
    }
}

/// Creates the client's transport, and reads the certificates. A configured server name belongs to AMQP's certificate: the HTTP API is
/// verified by the host of its URL.
#[cfg(feature = "management")]
fn create_transport(settings: &RabbitSettings, limit: Duration) -> Result<Transport<Empty<Bytes>>, TlsError> {
    let tls = settings.management_tls()?.map(|tls| TlsSettings { server_name: None, ..tls });
    Transport::load(tls.as_ref(), limit, false, "rabbitmq")
}

/// Repetitions of a request that was not sent, for no known reason.
#[cfg(feature = "management")]
const MAX_UNSENT_RETRIES: usize = 2;

/// Maximum size of a response's body, in bytes.
#[cfg(feature = "management")]
const MAX_RESPONSE_BYTES: usize = 4 << 20;
