//! Time limits of a connection: of everything before a request (name resolution, connection, handshake), and of a write without progress.

use std::error::Error;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::Uri;
use tower_service::Service;

use super::stream::Stream;

/// Connector with time limits.
#[derive(Clone)]
pub(super) struct TimeoutConnector<C> {
    pub(super) connector: C,
    pub(super) limits: TransportTimeouts,
}

/// Time limits of a connection.
#[derive(Clone, Copy)]
pub(super) struct TransportTimeouts {
    /// Time until a connection can carry a request.
    pub(super) connect: Duration,
    /// Time in which the other side takes nothing of a request.
    pub(super) write: Duration,
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
        let (connecting, TransportTimeouts { connect, write }) = (self.connector.call(uri), self.limits);
        Box::pin(async move {
            match tokio::time::timeout(connect, connecting).await {
                Ok(result) => result.map(|stream| Stream::new(stream, write)).map_err(Into::into),
                Err(_) => Err(format!("no connection within {connect:?}").into()),
            }
        })
    }
}
