//! Time limit of everything before a request: name resolution, connection, handshake.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use tower_service::Service;

use super::stream::Stream;

/// Connector with a time limit.
#[derive(Clone)]
pub(super) struct TimeoutConnector<C> {
    pub(super) connector: C,
    pub(super) limit: Duration,
}

type ConnectError = Box<dyn Error + Send + Sync>;

impl<C> Service<Uri> for TimeoutConnector<C>
where
    C: Service<Uri>,
    C::Response: Send + 'static,
    C::Error: Into<ConnectError>,
    C::Future: Send + 'static,
{
    type Response = Stream<C::Response>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
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
