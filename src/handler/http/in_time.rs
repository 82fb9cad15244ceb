//! A limit of all that comes before a request: the name's address, the connection, the handshake.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use tower_service::Service;

use super::stream::Stream;

/// Connects in time, or not at all.
#[derive(Clone)]
pub(super) struct InTime<C> {
    pub(super) connector: C,
    pub(super) limit: Duration,
}

type Failed = Box<dyn Error + Send + Sync>;

impl<C> Service<Uri> for InTime<C>
where
    C: Service<Uri>,
    C::Response: Send + 'static,
    C::Error: Into<Failed>,
    C::Future: Send + 'static,
{
    type Response = Stream<C::Response>;
    type Error = Failed;
    type Future = BoxFuture<'static, Result<Self::Response, Failed>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        self.connector.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.connector.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map(Stream::new).map_err(Into::into),
                Err(_) => Err(format!("no connection within {limit:?}").into()),
            }
        })
    }
}
