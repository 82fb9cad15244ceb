//! The service behind the gateway, as the layer calls it, with or without a run.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::oneshot;
use tower_service::Service;

use super::answer::build_streamed_response;
use super::body::GuardedBody;
use super::keyed::KeyedService;
use super::problem::{GatewayProblemKind, build_problem_response};
use super::service_client::{ServiceCallResult, ServiceClient};
use oncely_config::GatewayConfig;
use oncely_http::{Body, Run, streaming_body};
use oncely_process::metrics::GatewayMetrics;

/// Service behind the gateway.
#[derive(Clone)]
pub(super) struct Upstream(Arc<UpstreamInner>);

struct UpstreamInner {
    keyed: KeyedService,
    client: Arc<ServiceClient>,
    limit: Duration,
    metrics: Arc<GatewayMetrics>,
}

impl Upstream {
    /// Loads the certificates, and creates the service behind the gateway. Makes no connection yet.
    ///
    /// # Errors
    /// If the certificates can't be used.
    pub(super) fn load(config: &GatewayConfig, metrics: Arc<GatewayMetrics>) -> anyhow::Result<Self> {
        let client = Arc::new(ServiceClient::load(config)?);
        let keyed = KeyedService::new(&config.gateway, Arc::clone(&client), Arc::clone(&metrics));
        Ok(Self(Arc::new(UpstreamInner { keyed, client, limit: config.gateway.max_run, metrics })))
    }
}

impl UpstreamInner {
    /// Streams a request without a key to the service, and its answer back; a failed call becomes a problem.
    async fn stream(&self, request: Request<Body>) -> Response<Body> {
        let is_repeatable = request.method().is_safe();
        // Limited from the end of the request on: an upload may take longer.
        let (guard, request_end) = oneshot::channel::<()>();
        let request = request.map(|body| streaming_body(GuardedBody::new(body, guard)));
        let late = async {
            let _ = request_end.await;
            tokio::time::sleep(self.limit).await;
        };
        let result = tokio::select! {
            biased;
            result = self.client.send(request, is_repeatable) => result,
            () = late => ServiceCallResult::Late,
        };
        self.metrics.plain.count_call(result.outcome());
        match result {
            ServiceCallResult::Answer(answer) => build_streamed_response(answer),
            ServiceCallResult::Unsent(why) => {
                tracing::warn!(error = why, "cannot connect to the service");
                build_problem_response(GatewayProblemKind::UpstreamAway, "Nothing was sent")
            }
            ServiceCallResult::Torn(why) => {
                tracing::warn!(error = why, "the service's answer was cut off");
                build_problem_response(
                    GatewayProblemKind::UpstreamBroken,
                    "Whether the request took effect is not known",
                )
            }
            ServiceCallResult::Cut(why) => {
                tracing::debug!(error = why, "a client's request was cut off");
                build_problem_response(
                    GatewayProblemKind::BodyIncomplete,
                    "It broke off, is malformed, or came too slowly",
                )
            }
            ServiceCallResult::Late => build_problem_response(
                GatewayProblemKind::UpstreamLate,
                "Whether the request took effect is not known",
            ),
        }
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match Run::from_extensions(request.extensions()) {
                Ok(run) => inner.keyed.call(&run, request).await,
                Err(_) => inner.stream(request).await,
            })
        })
    }
}
