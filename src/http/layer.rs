//! The layer and its service.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use sqlx::PgPool;
use tower_layer::Layer;
use tower_service::Service;

use super::answer::{Answer, NoAnswer};
use super::body::{Body, BoxError, passed, whole};
use super::key::{KeyError, key};
use super::problem::{Kind, Problem};
use super::request::{Asked, read};
use super::run::{Call, Run};
use super::settings::{Settings, SettingsError};
use super::store::Store;
use crate::identity::{Identity, IdentityPart};

/// Beyond a handler's limit and the wait for a key: a pool that is exhausted, a server that does not answer.
const SPARE: Duration = Duration::from_secs(30);

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
///     // From what authentication has left in the request's extensions.
///     .tenant(|_| Some("shop".to_owned()))
///     .build()?;
/// let app = Router::new().route("/payments", post(pay)).layer(idempotency);
/// # Ok(app)
/// # }
/// ```
#[derive(Clone)]
pub struct IdempotencyLayer {
    settings: Arc<Settings>,
    store: Store,
}

impl std::fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdempotencyLayer").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl IdempotencyLayer {
    /// For handlers whose effect is in PostgreSQL, in the database that has the `oncely` schema: key, effect and answer are one commit.
    /// A request with a key has one connection of the pool while its handler runs, and none while it waits for another one; the pool's
    /// login needs the role `oncely_worker` and whatever the handlers need, its sessions a `statement_timeout`.
    #[must_use]
    pub fn transactional(pool: PgPool) -> Settings {
        Settings::new(Store::new(pool))
    }

    /// Waits until no request is at work any more: those whose client has left go on without it. Call it after the server has stopped, and
    /// before the pool is closed. Dropping the future stops the waiting alone.
    pub async fn drain(&self) {
        self.store.tasks.close();
        self.store.tasks.wait().await;
    }
}

impl Settings {
    /// The layer.
    ///
    /// # Errors
    /// Everything that is missing or can't be, at once.
    pub fn build(self) -> Result<IdempotencyLayer, SettingsError> {
        let (settings, store) = self.checked()?;
        Ok(IdempotencyLayer { settings: Arc::new(settings), store })
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
        // What it fails with it fails with again when it is called, and there is somebody to be told.
        self.inner.poll_ready(context).map(|_| Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fresh = self.inner.clone();
        // The one that is ready.
        let inner = std::mem::replace(&mut self.inner, fresh);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.answer(inner, request).await) })
    }
}

impl IdempotencyLayer {
    async fn answer<S, B, R>(&self, mut inner: S, request: Request<B>) -> Response<Body>
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
        let key = match key(request.headers()) {
            _ if !settings.methods.contains(request.method()) => None,
            Ok(key) => Some(key),
            Err(KeyError::Missing) if !settings.required => None,
            Err(error) => return self.refused(error).into(),
        };
        let Some(key) = key else {
            return match inner.call(request.map(passed)).await {
                Ok(response) => response.map(passed),
                Err(error) => {
                    tracing::error!(error = %error.into(), "the service behind the layer has failed");
                    Problem::new(Kind::Failed, "").into()
                }
            };
        };
        let (parts, body) = request.into_parts();
        let consumer = settings.consumer.as_ref().and_then(|consumer| consumer.of(&parts));
        let tenant = settings.tenant.as_ref().and_then(|tenant| tenant(&parts));
        let tenant = tenant.and_then(|tenant| IdentityPart::new(tenant.as_bytes()).ok());
        let (Some(consumer), Some(tenant)) = (consumer, tenant) else {
            tracing::error!("a request has no tenant, or no route: nothing ran");
            return Problem::new(Kind::Failed, "Nothing was done").into();
        };
        // A client that leaves before all of it is there has asked for nothing.
        let body = match read(body, settings.max_request).await {
            Ok(body) => body,
            Err(problem) => return problem.into(),
        };
        let asked = Asked::new(settings, Identity { tenant, consumer, key }, &parts, &body);
        let most = settings.max_response;
        let call: Call = Box::new(move |request| {
            let calling = inner.call(request);
            Box::pin(async move {
                let response = calling.await.map_err(|error| NoAnswer::Service(error.into()))?;
                Answer::read(response, most).await
            })
        });
        let run = Run {
            settings: Arc::clone(settings),
            store: self.store.clone(),
            asked,
            request: Request::from_parts(parts, whole(body)),
            call,
        };
        let (reply, answered) = tokio::sync::oneshot::channel();
        self.store.tasks.spawn(crate::failpoint::inherit(run.run(reply)));
        let limit = settings.wait + settings.handler_limit + SPARE;
        match tokio::time::timeout(limit, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => {
                tracing::error!("a request has ended without an answer");
                Problem::unavailable().into()
            }
            // A server that does not answer: whether it has committed is not known.
            Err(_) => Problem::unavailable().into(),
        }
    }

    fn refused(&self, error: KeyError) -> Problem {
        let problem = match error {
            KeyError::Missing => Problem::new(
                Kind::KeyMissing,
                "Send the header Idempotency-Key with a value of your own for each intent, such as a UUID, and the same one with each retry",
            ),
            KeyError::Invalid(why) => Problem::new(Kind::KeyInvalid, why),
        };
        problem.described_by(self.settings.described_by.clone())
    }
}
