//! The service behind the gateway, as the layer calls it: with a run, or without one.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::oneshot;
use tower_service::Service;

use super::answer::streamed;
use super::body::Guarded;
use super::calls::{Calls, Sent};
use super::keyed::Keyed;
use super::problem::{Kind, problem};
use crate::config::GatewayConfig;
use crate::http::{Body, Run, passed};
use crate::metrics::GatewayMetrics;

/// The service behind the layer.
#[derive(Clone)]
pub(super) struct Upstream(Arc<Inner>);

struct Inner {
    keyed: Keyed,
    calls: Arc<Calls>,
    limit: Duration,
    metrics: Arc<GatewayMetrics>,
}

impl Upstream {
    /// Makes no connection yet.
    ///
    /// # Errors
    /// When the certificates can't be used.
    pub(super) fn new(config: &GatewayConfig, metrics: Arc<GatewayMetrics>) -> anyhow::Result<Self> {
        let calls = Arc::new(Calls::new(config)?);
        let keyed = Keyed::new(&config.gateway, Arc::clone(&calls), Arc::clone(&metrics));
        Ok(Self(Arc::new(Inner { keyed, calls, limit: config.gateway.max_run, metrics })))
    }
}

impl Inner {
    /// Both ways as it comes.
    async fn stream(&self, request: Request<Body>) -> Response<Body> {
        let is_repeatable = request.method().is_safe();
        // Counted from the end of the request: an upload takes as long as it does.
        let (guard, sent) = oneshot::channel::<()>();
        let request = request.map(|body| passed(Guarded::new(body, guard)));
        let late = async {
            let _ = sent.await;
            tokio::time::sleep(self.limit).await;
        };
        let sent = tokio::select! {
            biased;
            sent = self.calls.send(request, is_repeatable) => sent,
            () = late => Sent::Late,
        };
        self.metrics.plain.called(sent.result());
        match sent {
            Sent::Answer(answer) => streamed(answer),
            Sent::Unsent(why) => {
                tracing::warn!(error = why, "the service can't be reached");
                problem(Kind::UpstreamAway, "Nothing was sent")
            }
            Sent::Torn(why) => {
                tracing::warn!(error = why, "the service's answer broke off");
                problem(Kind::UpstreamBroken, "Whether the request took effect is not known")
            }
            Sent::Cut(why) => {
                tracing::debug!(error = why, "a client's request broke off");
                problem(Kind::BodyIncomplete, "It broke off, is malformed, or came too slowly")
            }
            Sent::Late => problem(Kind::UpstreamLate, "Whether the request took effect is not known"),
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
            Ok(match Run::of(request.extensions()) {
                Ok(run) => inner.keyed.call(&run, request).await,
                Err(_) => inner.stream(request).await,
            })
        })
    }
}
