//! A handler elsewhere: each message is posted to an HTTP endpoint, as a step under the message's lease.

#[cfg(feature = "http-handler")]
mod answer;
#[cfg(feature = "http-handler")]
mod client;
mod endpoint;
#[cfg(feature = "http-handler")]
mod in_time;
#[cfg(feature = "http-handler")]
mod request;
#[cfg(feature = "http-handler")]
mod stream;
#[cfg(feature = "http-handler")]
mod transport;

pub use endpoint::HttpEndpoint;

#[cfg(feature = "http-handler")]
pub(crate) use post::HttpHandler;
#[cfg(feature = "management")]
pub(crate) use transport::Transport;
#[cfg(feature = "gateway")]
pub(crate) use transport::{CONNECT, Failed};

#[cfg(feature = "http-handler")]
mod post {
    use serde_json::Value;

    use super::answer::meaning;
    use super::client::Client;
    use super::endpoint::HttpEndpoint;
    use super::request::request;
    use crate::handler::lease::{Call, Finish, Lease, LeasedHandler, Step, StepError};
    use crate::handler::{HandlerError, Message};

    /// The one step of such a handler. Its name is part of the key that the other side sees, so it never changes.
    const STEP: &str = "http";

    /// Posts messages to an endpoint.
    pub(crate) struct HttpHandler {
        endpoint: HttpEndpoint,
        client: Client,
    }

    /// Why there is no handler; nothing of its secrets.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    pub(crate) struct Unready(#[from] crate::tls::TlsError);

    impl HttpHandler {
        /// No connection is made yet. Reads the certificates.
        pub(crate) fn new(endpoint: HttpEndpoint) -> Result<Self, Unready> {
            let client = Client::new(&endpoint)?;
            Ok(Self { endpoint, client })
        }

        async fn call(&self, message: Message<'_>, call: Call) -> Result<Value, StepError> {
            let request = request(&self.endpoint, message, call).await?;
            meaning(self.client.send(request, self.endpoint.timeout).await)
        }
    }

    impl LeasedHandler for HttpHandler {
        async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
            let step = Step::new(STEP, self.endpoint.repeat);
            let answer: Value = lease.step(&step, async |call| self.call(message, call).await).await?;
            Finish::response(answer)
        }
    }
}
