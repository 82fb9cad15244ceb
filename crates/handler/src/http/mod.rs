//! A handler in another service: each message is posted to an HTTP endpoint, as a step under the message's lease.

#[cfg(feature = "http-handler")]
mod answer;
#[cfg(feature = "http-handler")]
mod client;
mod endpoint;
#[cfg(feature = "http-handler")]
mod request;

pub use endpoint::HttpEndpoint;

#[cfg(feature = "http-handler")]
pub use post::HttpHandler;

#[cfg(feature = "http-handler")]
mod post {
    use serde_json::Value;

    use super::answer::meaning;
    use super::client::EndpointClient;
    use super::endpoint::HttpEndpoint;
    use super::request::request;
    use crate::lease::{Finish, Lease, LeasedHandler};
    use crate::{HandlerError, Message};
    use oncely_lease::{Call, Step, StepError};

    /// The one step of such a handler. Its name is part of the key that the other side sees, so it never changes.
    const STEP: &str = "http";

    /// Posts messages to an endpoint.
    pub struct HttpHandler {
        endpoint: HttpEndpoint,
        client: EndpointClient,
    }

    /// Reason why no handler could be made; contains no secrets.
    #[derive(Debug, thiserror::Error)]
    #[error(transparent)]
    pub struct HttpHandlerError(#[from] oncely_net::tls::TlsError);

    impl HttpHandler {
        /// Reads the certificates. Makes no connection yet.
        #[doc(hidden)]
        pub fn new(endpoint: HttpEndpoint) -> Result<Self, HttpHandlerError> {
            let client = EndpointClient::new(&endpoint)?;
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
