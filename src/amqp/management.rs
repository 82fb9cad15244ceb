//! RabbitMQ's HTTP API (plugin `rabbitmq_management`): what AMQP tells nobody, such as policies and bindings. Only asked, never changed.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use url::Url;

use crate::config::RabbitSettings;
use crate::tls::{TlsError, TlsFault, TlsSettings};

/// Why there is no answer. Texts hold no URL.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagementError {
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

/// A queue as the broker has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct QueueFacts {
    /// `quorum`, `classic`, `stream`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) exclusive: bool,
    pub(crate) arguments: Map<String, Value>,
    /// The policies that hold for it, merged. RabbitMQ writes an empty list where there is none.
    effective_policy_definition: Value,
}

impl QueueFacts {
    /// A setting by its name without `x-`: as the queue was declared, else as a policy says.
    pub(crate) fn setting(&self, name: &str) -> Option<&Value> {
        self.declared(name).or_else(|| self.policy(name))
    }

    /// A number that both can set, the lower one counting.
    pub(crate) fn lowest(&self, name: &str) -> Option<i64> {
        let both = [self.declared(name), self.policy(name)];
        both.into_iter().flatten().filter_map(Value::as_i64).min()
    }

    fn declared(&self, name: &str) -> Option<&Value> {
        self.arguments.get(&format!("x-{name}"))
    }

    /// What a policy says of a setting.
    pub(crate) fn policy(&self, name: &str) -> Option<&Value> {
        self.effective_policy_definition.get(name)
    }
}

/// A binding of a queue.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct BindingFacts {
    /// The exchange; empty for the default one.
    pub(crate) source: String,
    pub(crate) routing_key: String,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
}

/// The API of the broker's virtual host.
pub(crate) struct Management {
    base: Url,
    vhost: String,
    /// User and password, with a colon in between.
    credentials: SecretString,
    /// What of TLS is meant; nothing for plaintext.
    tls: Option<TlsSettings>,
    limit: Duration,
}

impl From<TlsError> for ManagementError {
    fn from(error: TlsError) -> Self {
        Self::Tls(error.to_string(), TlsFault::Refused)
    }
}

impl Management {
    /// As `rabbitmq.management` says; with the user of `rabbitmq.url` where that names none. Each answer is waited for up to `limit`.
    pub(crate) fn new(settings: &RabbitSettings, limit: Duration) -> Result<Self, ManagementError> {
        let url = settings.management.as_ref().ok_or(ManagementError::NotSet)?;
        let settings = &*settings.current().map_err(|error| ManagementError::Away(error.to_string()))?;
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
        // Nothing of it in an error's text.
        let bare = base.set_username("").and_then(|()| base.set_password(None));
        bare.map_err(|()| ManagementError::Away("rabbitmq.management is not a URL".to_owned()))?;
        let tls = settings.management_tls()?;
        Ok(Self { base, vhost: broker.vhost, credentials: credentials.into(), tls, limit })
    }

    /// The broker's version.
    pub(crate) async fn version(&self) -> Result<String, ManagementError> {
        #[derive(Deserialize)]
        struct Overview {
            rabbitmq_version: String,
        }
        let overview: Option<Overview> = self.get(&["overview"]).await?;
        overview.map(|overview| overview.rabbitmq_version).ok_or(ManagementError::Status(404))
    }

    /// A queue; `None` where it is missing.
    pub(crate) async fn queue(&self, name: &str) -> Result<Option<QueueFacts>, ManagementError> {
        self.get(&["queues", &self.vhost, name]).await
    }

    /// What is bound to a queue.
    pub(crate) async fn bindings(&self, queue: &str) -> Result<Vec<BindingFacts>, ManagementError> {
        let bindings: Option<Vec<BindingFacts>> =
            self.get(&["queues", &self.vhost, queue, "bindings"]).await?;
        Ok(bindings.unwrap_or_default())
    }

    /// The type of an exchange; `None` where it is missing.
    pub(crate) async fn exchange_type(&self, name: &str) -> Result<Option<String>, ManagementError> {
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
        let _ = (&self.base, &self.credentials, &self.tls, self.limit);
        Err(ManagementError::NotBuilt)
    }

    /// Asks for one thing; `None` where there is no such thing.
    #[cfg(feature = "management")]
    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<Option<T>, ManagementError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        let (credentials, tls, limit) = (self.credentials.clone(), self.tls.clone(), self.limit);
        // The client blocks its thread; it has a limit of its own.
        let asked = tokio::task::spawn_blocking(move || ask(&url, &credentials, tls.as_ref(), limit));
        let answered = asked.await.map_err(|error| ManagementError::Away(error.to_string()))?;
        let body = match answered {
            Err(Asked::Answer(ureq::Error::StatusCode(404))) => return Ok(None),
            answered => answered.map_err(|error| error.told(self.tls.as_ref()))?,
        };
        serde_json::from_slice(&body).map(Some).map_err(|_| ManagementError::Unreadable)
    }
}

/// Largest answer that is read, in bytes.
#[cfg(feature = "management")]
const ANSWER: u64 = 4 << 20;

/// Why a question got no answer.
#[cfg(feature = "management")]
enum Asked {
    Answer(ureq::Error),
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    Tls(TlsError),
}

#[cfg(feature = "management")]
impl Asked {
    fn told(self, tls: Option<&TlsSettings>) -> ManagementError {
        let error = match self {
            Self::Tls(error) => return error.into(),
            Self::Answer(ureq::Error::StatusCode(status @ (401 | 403))) => {
                return ManagementError::Refused(status);
            }
            Self::Answer(ureq::Error::StatusCode(status)) => return ManagementError::Status(status),
            Self::Answer(error) => error,
        };
        #[cfg(feature = "tls")]
        if let Some(tls) = tls {
            let has_certificate = tls.cert.is_some();
            // The client does not call what it wraps a source.
            let fault = match &error {
                ureq::Error::Rustls(error) => crate::tls::fault_of(error, has_certificate),
                ureq::Error::Io(error) => crate::tls::fault_of(error, has_certificate),
                _ => None,
            };
            if let Some(fault) = fault {
                return ManagementError::Tls(error.to_string(), fault);
            }
        }
        let _ = tls;
        ManagementError::Away(error.to_string())
    }
}

#[cfg(feature = "management")]
fn ask(
    url: &Url,
    credentials: &SecretString,
    tls: Option<&TlsSettings>,
    limit: Duration,
) -> Result<Vec<u8>, Asked> {
    use base64::Engine as _;
    let credentials = base64::engine::general_purpose::STANDARD.encode(credentials.expose_secret());
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(limit))
        .max_redirects(0)
        .https_only(tls.is_some())
        .proxy(None);
    #[cfg(feature = "tls")]
    let config = match tls {
        Some(tls) => config.tls_config(client_tls(tls).map_err(Asked::Tls)?),
        None => config,
    };
    let answer = ureq::Agent::new_with_config(config.build())
        .get(url.as_str())
        .header("authorization", format!("Basic {credentials}"))
        .call()
        .map_err(Asked::Answer)?;
    answer.into_body().into_with_config().limit(ANSWER).read_to_vec().map_err(Asked::Answer)
}

/// The HTTP client has certificates of its own kind, and verifies the host of the URL.
#[cfg(all(feature = "management", feature = "tls"))]
fn client_tls(tls: &TlsSettings) -> Result<ureq::tls::TlsConfig, TlsError> {
    use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

    let files = crate::tls::Files::read(tls).map_err(TlsError::Files)?;
    let own = |der: &[u8]| Certificate::from_der(der).to_owned();
    let roots: Vec<_> = crate::tls::roots(&files)?.iter().map(|root| own(root)).collect();
    let identity = match &files.identity {
        None => None,
        Some(identity) => {
            let chain: Vec<_> = identity.chain.iter().map(|certificate| own(certificate)).collect();
            let key = PrivateKey::from_pem(&identity.key_pem);
            let key =
                key.map_err(|_| TlsError::Refused("the key in tls.key is of another kind".to_owned()))?;
            Some(ClientCert::new_with_certs(&chain, key))
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::from(roots))
        .client_cert(identity)
        .unversioned_rustls_crypto_provider(crate::tls::provider())
        .build())
}
