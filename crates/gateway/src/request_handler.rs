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
use super::layer::{methods, tenant_of};
use super::problem::{GatewayProblemKind, UPSTREAM, problem};
use super::request::{Peer, prepare_upstream};
use super::upstream::Upstream;
use oncely_config::{GatewaySettings, GatewayTenant, Network};
use oncely_http::{AnswerName, Body, Idempotency, IdempotencyLayer, KEY, passed};
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
            methods: methods(settings)?,
            required: settings.required,
            tenant: settings.tenant.clone(),
            trusted: settings.trusted_proxies.clone(),
            metrics,
        })
    }

    /// Answers a request. `is_secure`: it came over TLS.
    pub(super) async fn answer(
        &self,
        peer: IpAddr,
        is_secure: bool,
        request: Request<Incoming>,
        place: &Arc<ConnectionPermit>,
    ) -> Response<Body> {
        let began = Instant::now();
        let (mut parts, body) = request.into_parts();
        let origin = ScriptOrigin::from_headers(&parts.headers);
        let peer = Peer { address: peer, is_trusted: self.trusts(peer), is_secure };
        let refused = prepare_upstream(&mut parts, peer).err();
        // Decided after `Connection` has removed the headers that it names.
        let is_keyed =
            self.methods.contains(&parts.method) && (self.required || parts.headers.contains_key(KEY));
        let metrics = self.metrics.requests(is_keyed);
        let inflight = InFlightGauge::new(&self.metrics.inflight);
        let mut answer = match refused {
            Some((kind, detail)) => problem(kind, detail),
            None if is_keyed && tenant_of(&self.tenant, &parts.headers).is_none() => problem(
                GatewayProblemKind::TenantMissing,
                "The header with the tenant is missing, or was sent twice",
            ),
            None => {
                parts.extensions.clear();
                let upload = Upload::new(body, !is_keyed, Arc::clone(place));
                let request = Request::from_parts(parts, passed(upload));
                let Ok(answer) = self.service.clone().call(request).await;
                answer
            }
        };
        drop(inflight);
        // The rest of the body is not awaited.
        place.finish_body(place.request());
        metrics.duration.record(began.elapsed().as_secs_f64());
        let name = name_of(&answer);
        metrics.answered(name);
        tracing::debug!(status = answer.status().as_u16(), is_keyed, "answered");
        answer.extensions_mut().clear();
        origin.allow(name, &mut answer);
        let place = AnswerGuard(Arc::clone(place));
        answer.map(|body| passed(GuardedBody::new(body, place)))
    }

    /// Returns whether this peer is a proxy, so that its forwarding headers are trusted.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|one| one.contains(peer))
    }

    /// Waits until no request with a key is at work.
    pub(super) async fn drain(&self) {
        self.layer.drain().await;
    }
}

/// A request without an answer yet, for the gauge; its client may leave.
struct InFlightGauge<'a>(&'a Gauge);

impl<'a> InFlightGauge<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for InFlightGauge<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A connection with an answer on its way.
struct AnswerGuard(Arc<ConnectionPermit>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.finish_answer();
    }
}

/// Returns the answer's name in metrics.
fn name_of(answer: &Response<Body>) -> &'static str {
    answer.extensions().get().map_or(UPSTREAM, |AnswerName(name)| *name)
}
