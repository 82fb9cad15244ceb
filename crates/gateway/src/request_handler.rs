//! Handles a request: refuses it, streams it through, or passes it to the layer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use metrics::Gauge;
use tower_layer::Layer as _;
use tower_service::Service as _;

use super::body::{GuardedBody, Upload};
use super::connection_limiter::ConnectionPermit;
use super::cors::ScriptOrigin;
use super::layer::{find_tenant, parse_methods};
use super::problem::{GatewayProblemKind, UPSTREAM, build_problem_response};
use super::request::{Peer, prepare_upstream};
use super::upstream::Upstream;
use oncely_config::{GatewaySettings, GatewayTenant, Network};
use oncely_http::{AnswerName, Body, Idempotency, IdempotencyLayer, KEY, streaming_body};
use oncely_process::metrics::GatewayMetrics;

/// Handler of the clients' requests.
pub(super) struct RequestHandler {
    layer: IdempotencyLayer,
    service: Idempotency<Upstream>,
    methods: Vec<Method>,
    required: bool,
    tenant: GatewayTenant,
    trusted: Vec<Network>,
    pub(super) metrics: Arc<GatewayMetrics>,
}

impl RequestHandler {
    /// Puts the layer in front of the service.
    ///
    /// # Errors
    /// If a configured method is not a valid HTTP method.
    pub(super) fn new(
        settings: &GatewaySettings,
        layer: IdempotencyLayer,
        upstream: Upstream,
        metrics: Arc<GatewayMetrics>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            service: layer.layer(upstream),
            layer,
            methods: parse_methods(settings)?,
            required: settings.required,
            tenant: settings.tenant.clone(),
            trusted: settings.trusted_proxies.clone(),
            metrics,
        })
    }

    /// Returns the response to a request: a problem if it is refused, otherwise that of the layer and the service. Counts and times it.
    /// `is_secure`: it came over TLS.
    pub(super) async fn handle_request(
        &self,
        peer: IpAddr,
        is_secure: bool,
        request: Request<Incoming>,
        permit: &Arc<ConnectionPermit>,
    ) -> Response<Body> {
        let began = Instant::now();
        let (mut parts, body) = request.into_parts();
        let origin = ScriptOrigin::from_headers(&parts.headers);
        let peer = Peer { address: peer, is_trusted: self.is_trusted_proxy(peer), is_secure };
        let refusal = prepare_upstream(&mut parts, peer).err();
        // Decided after `Connection` has removed the headers that it names.
        let is_keyed =
            self.methods.contains(&parts.method) && (self.required || parts.headers.contains_key(KEY));
        let metrics = self.metrics.requests(is_keyed);
        let inflight = InFlightGauge::begin(&self.metrics.inflight);
        let mut response = match refusal {
            Some((kind, detail)) => build_problem_response(kind, detail),
            None if is_keyed && find_tenant(&self.tenant, &parts.headers).is_none() => {
                build_problem_response(
                    GatewayProblemKind::TenantMissing,
                    "The header with the tenant is missing, or was sent twice",
                )
            }
            None => {
                parts.extensions.clear();
                let upload = Upload::new(body, !is_keyed, Arc::clone(permit));
                let request = Request::from_parts(parts, streaming_body(upload));
                let Ok(response) = self.service.clone().call(request).await;
                response
            }
        };
        drop(inflight);
        // The remainder of the body is not awaited.
        permit.finish_body(permit.request());
        metrics.duration.record(began.elapsed().as_secs_f64());
        let name = answer_name(&response);
        metrics.count_answer(name);
        tracing::debug!(status = response.status().as_u16(), is_keyed, "answered");
        response.extensions_mut().clear();
        origin.allow(name, &mut response);
        let permit = AnswerGuard(Arc::clone(permit));
        response.map(|body| streaming_body(GuardedBody::new(body, permit)))
    }

    /// Returns whether this peer is a configured proxy, so that its forwarding headers are trusted.
    pub(super) fn is_trusted_proxy(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|one| one.contains(peer))
    }

    /// Waits until no request with a key is at work.
    pub(super) async fn drain(&self) {
        self.layer.drain().await;
    }
}

/// Counts a request in the gauge until it is dropped: with its answer, or when its client leaves.
struct InFlightGauge<'a>(&'a Gauge);

impl<'a> InFlightGauge<'a> {
    fn begin(gauge: &'a Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for InFlightGauge<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Guard of a connection while its answer is sent.
struct AnswerGuard(Arc<ConnectionPermit>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.finish_answer();
    }
}

/// Returns the name of an answer in metrics: the problem's or the replay's, or that of the service's answers.
fn answer_name(response: &Response<Body>) -> &'static str {
    response.extensions().get().map_or(UPSTREAM, |AnswerName(name)| *name)
}
