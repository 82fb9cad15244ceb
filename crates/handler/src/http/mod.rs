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

    use super::answer::classify_result;
    use super::client::EndpointClient;
    use super::endpoint::HttpEndpoint;
    use super::request::build_request;
    use crate::lease::{Finish, Lease, LeasedHandler};
    use crate::{HandlerError, Message};
    use oncely_lease::{Call, Step, StepError};

    /// Name of the only step of this handler. It is part of the key that the endpoint receives, so it must never change.
    const HTTP_STEP: &str = "http";

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
        /// Loads the certificates, and creates the handler. Makes no connection yet.
        #[doc(hidden)]
        pub fn load(endpoint: HttpEndpoint) -> Result<Self, HttpHandlerError> {
            let client = EndpointClient::load(&endpoint)?;
            Ok(Self { endpoint, client })
        }

        async fn call(&self, message: Message<'_>, call: Call) -> Result<Value, StepError> {
            let request = build_request(&self.endpoint, message, call).await?;
            classify_result(self.client.send(request, self.endpoint.timeout).await)
        }
    }

    impl LeasedHandler for HttpHandler {
        async fn handle(&self, lease: &Lease, message: Message<'_>) -> Result<Finish, HandlerError> {
            let step = Step::new(HTTP_STEP, self.endpoint.repeat);
            let response: Value = lease.step(&step, async |call| self.call(message, call).await).await?;
            Finish::response(response)
        }
    }
}
