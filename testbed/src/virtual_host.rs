//! A virtual host of a test's own, on a broker that all tests of a run share.

use anyhow::Context as _;
use http::Method;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::RabbitMq;

/// The default user and its password.
const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// A virtual host on a broker with its HTTP API and the consistent hash exchange. Names of queues, policies and limits are its own; users are
/// the broker's, and named after it.
#[derive(Debug)]
pub struct VirtualHost {
    name: String,
    /// URL of the broker without a virtual host, as the default user.
    amqp: String,
    /// URL of the HTTP API, as the default user.
    management: String,
    /// Where the environment names no broker.
    _own: Option<RabbitMq>,
}

impl VirtualHost {
    /// The variables that name the shared broker: its URL without a virtual host, and that of its HTTP API.
    pub const VARIABLES: [&str; 2] = ["MANAGED_AMQP_URL", "MANAGED_HTTP_URL"];

    /// Starts the broker that tests share.
    pub async fn start_broker() -> anyhow::Result<RabbitMq> {
        RabbitMq::start_with_management_and("rabbitmq_consistent_hash_exchange").await
    }

    /// The values of the variables for a broker.
    #[must_use]
    pub fn values(broker: &RabbitMq) -> [String; 2] {
        let amqp = broker.url().trim_end_matches("%2f").to_owned();
        [amqp, broker.management_url().unwrap_or_default()]
    }

    /// Creates one on the broker that the environment names, or on a private one.
    pub async fn create() -> anyhow::Result<Self> {
        let [amqp, management] = Self::VARIABLES.map(|name| std::env::var(name).ok());
        let (own, [amqp, management]) = match (amqp, management) {
            (Some(amqp), Some(management)) => (None, [amqp, management]),
            _ => {
                let broker = Self::start_broker().await?;
                let values = Self::values(&broker);
                (Some(broker), values)
            }
        };
        let name = format!("test-{:016x}", fastrand::u64(..));
        let host = Self { name, amqp, management, _own: own };
        host.request(Method::PUT, &format!("vhosts/{}", host.name), None).await?;
        host.permit("guest", [".*"; 3]).await?;
        Ok(host)
    }

    /// Its name, which no other has.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, as the default user.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}{}", self.amqp, self.name)
    }

    /// Its URL, as another user.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url().replace("guest:guest", &format!("{user}:{password}"))
    }

    /// URL of the broker's HTTP API, as the default user.
    #[must_use]
    pub fn management_url(&self) -> String {
        self.management.clone()
    }

    /// The broker's version.
    pub async fn version(&self) -> anyhow::Result<String> {
        let overview: Value = serde_json::from_slice(&self.request(Method::GET, "overview", None).await?)?;
        overview["rabbitmq_version"].as_str().map(str::to_owned).context("no version")
    }

    /// Sets a policy for queues, or removes it where there is no definition.
    pub async fn policy(&self, name: &str, of: Option<(&str, &str)>) -> anyhow::Result<()> {
        let path = format!("policies/{}/{name}", self.name);
        let Some((pattern, definition)) = of else {
            return self.request(Method::DELETE, &path, None).await.map(drop);
        };
        let definition: Value = serde_json::from_str(definition)?;
        let policy = json!({ "pattern": pattern, "definition": definition, "apply-to": "queues" });
        self.request(Method::PUT, &path, Some(policy)).await.map(drop)
    }

    /// Creates a user without permissions, or gives it another password.
    pub async fn user(&self, name: &str, password: &str) -> anyhow::Result<()> {
        let user = json!({ "password": password, "tags": "" });
        self.request(Method::PUT, &format!("users/{name}"), Some(user)).await.map(drop)
    }

    /// Permits a user to configure, write and read what these patterns match.
    pub async fn permit(&self, user: &str, [configure, write, read]: [&str; 3]) -> anyhow::Result<()> {
        let permissions = json!({ "configure": configure, "write": write, "read": read });
        self.request(Method::PUT, &format!("permissions/{}/{user}", self.name), Some(permissions))
            .await
            .map(drop)
    }

    /// Closes all connections of a user.
    pub async fn close_connections(&self, user: &str) -> anyhow::Result<()> {
        self.request(Method::DELETE, &format!("connections/username/{user}"), None).await.map(drop)
    }

    /// Limits its connections, or ends the limit.
    pub async fn limit_connections(&self, most: Option<u32>) -> anyhow::Result<()> {
        let path = format!("vhost-limits/{}/max-connections", self.name);
        match most {
            Some(most) => self.request(Method::PUT, &path, Some(json!({ "value": most }))).await.map(drop),
            None => self.request(Method::DELETE, &path, None).await.map(drop),
        }
    }

    async fn request(&self, method: Method, path: &str, body: Option<Value>) -> anyhow::Result<Bytes> {
        let base = self.management.replace("guest:guest@", "");
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{base}/api/{path}"))
            .header("authorization", GUEST)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let client = legacy::Client::builder(TokioExecutor::new()).build_http();
        let (head, body) = client.request(request).await?.into_parts();
        let said = body.collect().await?.to_bytes();
        anyhow::ensure!(
            head.status.is_success(),
            "{path}: {}: {}",
            head.status,
            String::from_utf8_lossy(&said)
        );
        Ok(said)
    }
}
