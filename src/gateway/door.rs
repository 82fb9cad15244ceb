//! What becomes of a request: refused, streamed through, or through the layer.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use metrics::Gauge;
use tower_layer::Layer as _;
use tower_service::Service as _;

use super::body::{Guarded, Upload};
use super::browser::Asker;
use super::layer::{methods, tenant_of};
use super::places::Place;
use super::problem::{Kind, UPSTREAM, problem};
use super::request::{Peer, onward};
use super::upstream::Upstream;
use crate::config::{GatewaySettings, GatewayTenant, Network};
use crate::http::{AnswerName, Body, Idempotency, IdempotencyLayer, KEY, passed};
use crate::metrics::GatewayMetrics;

/// Where requests come in.
pub(super) struct Door {
    layer: IdempotencyLayer,
    service: Idempotency<Upstream>,
    methods: Vec<Method>,
    required: bool,
    tenant: GatewayTenant,
    trusted: Vec<Network>,
    pub(super) metrics: Arc<GatewayMetrics>,
}

impl Door {
    /// Behind the layer the service.
    ///
    /// # Errors
    /// Where a method is none.
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

    /// Answers a request.
    /// `is_secure`: it came by TLS.
    pub(super) async fn answer(
        &self,
        peer: IpAddr,
        is_secure: bool,
        request: Request<Incoming>,
        place: &Arc<Place>,
    ) -> Response<Body> {
        let began = Instant::now();
        let (mut parts, body) = request.into_parts();
        let asker = Asker::of(&parts.headers);
        let peer = Peer { address: peer, is_trusted: self.trusts(peer), is_secure };
        let refused = onward(&mut parts, peer).err();
        // As it goes on: what `Connection` names has no say here either.
        let is_keyed =
            self.methods.contains(&parts.method) && (self.required || parts.headers.contains_key(KEY));
        let metrics = self.metrics.of(is_keyed);
        let inflight = InFlight::new(&self.metrics.inflight);
        let mut answer = match refused {
            Some((kind, detail)) => problem(kind, detail),
            None if is_keyed && tenant_of(&self.tenant, &parts.headers).is_none() => {
                problem(Kind::TenantMissing, "The header with the tenant is missing, or was sent twice")
            }
            None => {
                parts.extensions.clear();
                let upload = Upload::new(body, !is_keyed, Arc::clone(place));
                let request = Request::from_parts(parts, passed(upload));
                let Ok(answer) = self.service.clone().call(request).await;
                answer
            }
        };
        drop(inflight);
        // Whatever is left of the body is not waited for.
        place.has_arrived();
        metrics.duration.record(began.elapsed().as_secs_f64());
        let name = name_of(&answer);
        metrics.answered(name);
        tracing::debug!(status = answer.status().as_u16(), is_keyed, "answered");
        answer.extensions_mut().clear();
        asker.let_read(name, &mut answer);
        let place = Answering(Arc::clone(place));
        answer.map(|body| passed(Guarded::new(body, place)))
    }

    /// Are there other clients behind this one, as it says?
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.iter().any(|one| one.contains(peer))
    }

    /// Waits until no request with a key is at work any more.
    pub(super) async fn drain(&self) {
        self.layer.drain().await;
    }
}

/// A request whose answer has not begun; its client may leave.
struct InFlight<'a>(&'a Gauge);

impl<'a> InFlight<'a> {
    fn new(gauge: &'a Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A connection whose answer is not over.
struct Answering(Arc<Place>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.is_idle();
    }
}

/// Whose answer it is.
fn name_of(answer: &Response<Body>) -> &'static str {
    answer.extensions().get().map_or(UPSTREAM, |AnswerName(name)| *name)
}
