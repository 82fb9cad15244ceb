//! The layer and its service.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::request::Parts;
use http::{Request, Response};
use sqlx::PgPool;
use tokio_util::task::TaskTracker;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{AnswerReadError, HandlerAnswer, HandlerCall};
use super::body::{Body, BoxError, streaming_body};
use super::builder::IdempotencyLayerBuilder;
use super::check::SettingsError;
use super::in_flight::InFlightKeys;
use super::key::{KeyError, parse_key};
use super::key_time::parse_key_time;
use super::leased::LeasedRequest;
use super::limits::{RequestLimiter, RequestPermit};
use super::problem::{ProblemDetails, ProblemKind};
use super::request::{RequestIdentity, read_body};
use super::settings::{KeyStore, Settings};
use super::store::Store;
use super::transactional::TransactionalRequest;
use oncely_core::identity::{Identity, IdentityPart};
use oncely_lease::{AnyStore, LeaseRunner, LeaseStore};

/// Time added to the handler's limit and the wait for a key, for an exhausted pool or a slow server.
const TIME_MARGIN: Duration = Duration::from_secs(30);

/// Lets each request with an `Idempotency-Key` take effect once. See the [module](super).
///
/// ```no_run
/// use oncely::http::{Consumer, IdempotencyLayer, Tx};
/// # #[cfg(feature = "axum")]
/// # async fn example(pool: sqlx::PgPool) -> Result<axum::Router, oncely::http::SettingsError> {
/// use axum::{Router, routing::post};
///
/// async fn pay(mut tx: Tx, order: String) -> Result<String, axum::http::StatusCode> {
///     sqlx::query("insert into payments (order_id) values ($1)")
///         .bind(&order)
///         .execute(&mut *tx)
///         .await
///         .map_err(|_| axum::http::StatusCode::INTERNAL_SERVER_ERROR)?;
///     Ok(format!("paid {order}"))
/// }
///
/// let idempotency = IdempotencyLayer::transactional(pool)
///     .consumer(Consumer::route())
///     // From the request's extensions, as authentication has set them.
///     .tenant(|_| Some("shop".to_owned()))
///     .principal(|parts| parts.extensions.get::<String>().cloned())
///     .build()?;
/// let app = Router::new().route("/payments", post(pay)).layer(idempotency);
/// # Ok(app)
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    keys: KeyClaims,
    in_flight: InFlightKeys,
    limiter: RequestLimiter,
    /// Tasks of requests at work, also of those that no client waits for.
    tasks: TaskTracker,
}

/// Store of a layer's keys, built.
#[derive(Clone)]
enum KeyClaims {
    Transactions(Store),
    Leases(Arc<LeaseRunner<AnyStore>>),
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// Builds a layer for handlers that write to PostgreSQL, to the database with the `oncely` schema: key, effect and answer are one
    /// commit. A request with a key uses one connection of the pool while its handler runs, and none while it waits for another request.
    /// The pool's login needs the role `oncely_worker` and the handlers' own rights, its sessions a `statement_timeout`.
    #[must_use]
    pub fn transactional(pool: PgPool) -> IdempotencyLayerBuilder {
        IdempotencyLayerBuilder::new(KeyStore::Transactions(Store::new(pool)))
    }

    /// Builds a layer for handlers with effects outside PostgreSQL, such as calls of a payment provider. A lease in `store` holds the key
    /// while the handler runs, and the answer is stored before it is sent. The handler runs its [steps](oncely_lease::Run::step) on the
    /// [`Run`](super::Run) in the request's extensions; calls outside of steps may be repeated.
    ///
    /// | the handler | recorded |
    /// | --- | --- |
    /// | gives a [final](IdempotencyLayerBuilder::is_final) answer | done, with the answer: a retry gets it again |
    /// | answers 429 or 503; or a 3xx or 4xx is given and no handler has taken its [`Run`](super::Run) | nothing: the key is given back, and a retry runs at once |
    /// | gives another answer that is not final, panics, or exceeds its limit | a failed run ([`IdempotencyLayerBuilder::retry`]); the results of its steps are kept |
    /// | answers with a [`FailureResponse`](super::FailureResponse) (a `HandlerError`) | the record of this error, see the table there |
    /// | is killed with its process | nothing: its lease expires, and the next run takes over |
    ///
    /// With [`PostgresStore`](oncely_lease::PostgresStore) and [`Consumer::shared`](super::Consumer::shared) the keys are those of a
    /// queue's consumer, which also runs under leases.
    ///
    /// ```no_run
    /// use oncely::http::{Consumer, IdempotencyLayer, Run};
    /// use oncely::lease::{Call, PostgresStore, Repeat, Step, StepError};
    /// # #[cfg(feature = "axum")]
    /// # async fn example(pool: sqlx::PgPool) -> Result<axum::Router, oncely::http::SettingsError> {
    /// use axum::{Router, routing::post};
    ///
    /// const CHARGE: Step = Step::new("charge", Repeat::Within(std::time::Duration::from_secs(86_400)));
    ///
    /// async fn pay(run: Run, order: String) -> Result<String, oncely::HandlerError> {
    ///     // POST to the provider, with Idempotency-Key: call.key
    ///     let charge = async |call: Call| Ok::<_, StepError>(format!("charged as {}", call.key));
    ///     run.step(&CHARGE, charge).await
    /// }
    ///
    /// let idempotency = IdempotencyLayer::leased(PostgresStore::new(pool))
    ///     .consumer(Consumer::route())
    ///     .tenant(|_| Some("shop".to_owned()))
    ///     .principal(|parts| parts.extensions.get::<String>().cloned())
    ///     .build()?;
    /// let app = Router::new().route("/payments", post(pay)).layer(idempotency);
    /// # Ok(app)
    /// # }
    /// ```
    #[must_use]
    pub fn leased(store: impl LeaseStore) -> IdempotencyLayerBuilder {
        IdempotencyLayerBuilder::new(KeyStore::Leases(AnyStore::new(store)))
    }

    /// Waits until no request is at work; requests go on after their client has left. Call it after the server has stopped and before the
    /// pool is closed. Dropping the future only stops waiting. A leased layer with an unavailable store waits until the store has recorded
    /// the results of its runs.
    pub async fn drain(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl IdempotencyLayerBuilder {
    /// Builds the layer.
    ///
    /// # Errors
    /// If settings are missing or invalid; all problems are reported at once.
    pub fn build(self) -> Result<IdempotencyLayer, SettingsError> {
        let settings = self.0.validate()?;
        let keys = match settings.keys.clone() {
            KeyStore::Transactions(store) => KeyClaims::Transactions(store),
            KeyStore::Leases(store) => KeyClaims::Leases(Arc::new(settings.build_runner(store))),
        };
        let limiter = RequestLimiter::new(&settings.limits, settings.max_request);
        let (settings, in_flight, tasks) = (Arc::new(settings), InFlightKeys::default(), TaskTracker::new());
        Ok(IdempotencyLayer { settings, keys, in_flight, limiter, tasks })
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency { layer: self.clone(), inner }
    }
}

/// A service behind an [`IdempotencyLayer`].
#[derive(Clone, Debug)]
pub struct Idempotency<S> {
    layer: IdempotencyLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: http_body::Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // A service that fails here fails again when it is called; the error is handled there.
        self.inner.poll_ready(context).map(|_| Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fresh = self.inner.clone();
        // This clone has been polled ready.
        let inner = std::mem::replace(&mut self.inner, fresh);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.handle_request(inner, request).await) })
    }
}

impl IdempotencyLayer {
    /// Returns the response to a request: without a key that of the handler alone; else that of the key's run, its stored answer or a
    /// problem.
    async fn handle_request<S, B, R>(&self, mut inner: S, request: Request<B>) -> Response<Body>
    where
        S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let settings = &self.settings;
        let key = match parse_key(request.headers()) {
            _ if !settings.methods.contains(request.method()) => None,
            Ok(key) => Some(key),
            Err(KeyError::Missing) if !settings.required => None,
            Err(error) => return self.build_key_problem(error).into(),
        };
        let Some(key) = key else {
            return match inner.call(request.map(streaming_body)).await {
                Ok(response) => response.map(streaming_body),
                Err(error) => {
                    tracing::error!(error = %error.into(), "inner service failed");
                    ProblemDetails::new(ProblemKind::Failed, "").into()
                }
            };
        };
        let (parts, body) = request.into_parts();
        let consumer = settings.consumer.as_ref().and_then(|consumer| consumer.resolve(&parts));
        let tenant = settings.tenant.as_ref().and_then(|tenant| tenant(&parts));
        let tenant = tenant.and_then(|tenant| IdentityPart::new(tenant.as_bytes()).ok());
        let (Some(consumer), Some(tenant)) = (consumer, tenant) else {
            tracing::error!("request rejected: it has no tenant or no route");
            return ProblemDetails::new(ProblemKind::Failed, "Nothing was done").into();
        };
        // A client that leaves before its body is complete has started no request.
        let mut received = self.limiter.begin_body();
        let body =
            match read_body(body, settings.max_request, settings.limits.read_limit, &mut received).await {
                Ok(body) => body,
                Err(problem) if problem.kind == ProblemKind::Busy => {
                    return self.build_busy_response(&consumer, "bytes");
                }
                Err(problem) => return problem.into(),
            };
        let Some(permit) = self.limiter.enter(received) else {
            return self.build_busy_response(&consumer, "requests");
        };
        let key_time = match settings.refuse_old_keys.then(|| parse_key_time(&parts.headers, key.as_str())) {
            None => None,
            Some(Ok(key_time)) => key_time,
            Some(Err(problem)) => return problem.described_by(settings.described_by.clone()).into(),
        };
        let request =
            RequestIdentity::new(settings, Identity { tenant, consumer, key }, key_time, &parts, &body);
        let (max_bytes, on_large) = (settings.max_response, settings.effective_on_large());
        let call: HandlerCall = Box::new(move |request| {
            let calling = inner.call(request);
            Box::pin(async move {
                let response = calling.await.map_err(|error| AnswerReadError::Service(error.into()))?;
                HandlerAnswer::read(response, max_bytes, on_large).await
            })
        });
        self.run(permit, request, parts, body, call).await
    }

    /// Runs a request in a task of its own, which goes on when the client leaves; waits for its response.
    async fn run(
        &self,
        permit: RequestPermit,
        request: RequestIdentity,
        parts: Parts,
        body: Bytes,
        call: HandlerCall,
    ) -> Response<Body> {
        let (settings, in_flight) = (Arc::clone(&self.settings), self.in_flight.clone());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        match &self.keys {
            KeyClaims::Transactions(store) => {
                let store = store.clone();
                let run = TransactionalRequest { settings, store, in_flight, request, parts, body, call };
                self.spawn(permit, run.run(sender));
            }
            KeyClaims::Leases(runner) => {
                let (runner, digest) = (Arc::clone(runner), request.digest(&settings, &body));
                let run = LeasedRequest { settings, runner, in_flight, request, digest, parts, body };
                self.spawn(permit, run.run(call, sender));
            }
        }
        let settings = &self.settings;
        let limit = settings.wait + settings.handler_limit + TIME_MARGIN;
        match tokio::time::timeout(limit, receiver).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => {
                tracing::error!("request ended without an answer");
                ProblemDetails::unavailable().into()
            }
            // The store does not answer, so the outcome of the commit is unknown.
            Err(_) => ProblemDetails::unavailable().into(),
        }
    }

    /// Counts a request that is refused as `limit` ("requests" or "bytes") is reached, and returns its response. Refusals may be frequent,
    /// so they are logged at intervals.
    fn build_busy_response(&self, consumer: &IdentityPart, limit: &str) -> Response<Body> {
        if let Some(refused) = self.limiter.count_refusal(Instant::now()) {
            tracing::warn!(%consumer, refused, "limit of {limit} in progress reached; refusing requests");
        }
        ProblemDetails::busy().into()
    }

    /// Runs a request in its own task, which holds its permit.
    fn spawn(&self, permit: RequestPermit, run: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(oncely_failpoint::inherit(async move {
            run.await;
            drop(permit);
        }));
    }

    /// Builds the problem for a missing or invalid key.
    fn build_key_problem(&self, error: KeyError) -> ProblemDetails {
        let problem = match error {
            KeyError::Missing => ProblemDetails::new(
                ProblemKind::KeyMissing,
                "Send the header Idempotency-Key with a value of your own for each intent, such as a UUID, and the same one with each retry",
            ),
            KeyError::Invalid(why) => ProblemDetails::new(ProblemKind::KeyInvalid, why),
        };
        problem.described_by(self.settings.described_by.clone())
    }
}
