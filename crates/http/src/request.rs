//! A complete request and its fingerprint.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::Uri;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError};

use super::body::BoxError;
use super::limits::ReceivedBytes;
use super::problem::{ProblemDetails, ProblemKind};
use super::settings::{POLICY, Settings};
use oncely_core::fingerprint::{Fingerprint, FingerprintPolicy};
use oncely_core::identity::Identity;
use oncely_core::trace_parent::TraceParent;
use oncely_lease as lease;

/// Identity and fingerprint of a request with a key.
#[derive(Clone, Debug)]
pub(super) struct RequestIdentity {
    pub(super) identity: Identity,
    pub(super) fingerprint: Option<Fingerprint>,
    /// Time that the key carries; `None` if it carries none.
    pub(super) key_time: Option<DateTime<Utc>>,
    pub(super) trace_id: Option<String>,
}

impl RequestIdentity {
    /// Creates the identity of a request, and computes its fingerprint: by the policy of the settings, or of method, path, query, body and
    /// principal.
    pub(super) fn new(
        settings: &Settings,
        identity: Identity,
        key_time: Option<DateTime<Utc>>,
        parts: &Parts,
        body: &Bytes,
    ) -> Self {
        let fingerprint = match &settings.fingerprint {
            Some(policy) => policy.fingerprint(body),
            None => {
                let uri = requested_uri(parts);
                let principal = settings.principal.as_ref().and_then(|principal| principal(parts));
                Some(Fingerprint::from_parts(
                    POLICY,
                    &[
                        parts.method.as_str().as_bytes(),
                        uri.path().as_bytes(),
                        uri.query().unwrap_or_default().as_bytes(),
                        body,
                        // `None` must not hash like `Some("")`.
                        &[u8::from(principal.is_some())],
                        principal.unwrap_or_default().as_bytes(),
                    ],
                ))
            }
        };
        let trace_parent = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        let trace_id = trace_parent.and_then(TraceParent::parse).map(|parent| parent.trace_id.to_owned());
        Self { identity, fingerprint, key_time, trace_id }
    }

    /// Returns the fingerprint for a lease store. If bodies are compared, it equals that of a message with this body.
    pub(super) fn digest(&self, settings: &Settings, body: &Bytes) -> [u8; 32] {
        match (&settings.fingerprint, &self.fingerprint) {
            (Some(FingerprintPolicy::Body), _) => lease::fingerprint(body),
            (_, Some(print)) => lease::fingerprint(&print.0),
            // Nothing is compared, so all requests get the same fingerprint.
            (_, None) => lease::fingerprint(&[]),
        }
    }
}

/// Returns the URI that the client requested; a nested router sees only the rest of the path.
fn requested_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// Reads the body of a request. A body that arrives too late, breaks off, has more than `max_bytes` or exceeds the limit of received bytes
/// is a problem.
pub(super) async fn read_body<B>(
    body: B,
    max_bytes: usize,
    limit: Duration,
    received: &mut ReceivedBytes,
) -> Result<Bytes, ProblemDetails>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        ProblemDetails::new(
            ProblemKind::TooLarge,
            format!("A request with a key has {max_bytes} bytes at most"),
        )
    };
    // Refused before it is read.
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let reading = async {
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.into().is::<LengthLimitError>() {
                // Limit of an outer layer.
                true => too_large(),
                false => ProblemDetails::new(
                    ProblemKind::BodyIncomplete,
                    "Nothing ran; send it again with the same key",
                ),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > max_bytes - bytes.len() {
                return Err(too_large());
            }
            // Allocated capacity is counted: a growing buffer may have twice the capacity that it needs.
            let needed = bytes.len() + data.len();
            if needed > bytes.capacity() {
                let grown = needed.max(bytes.capacity().saturating_mul(2).min(max_bytes));
                if !received.grow(grown - bytes.capacity()) {
                    return Err(ProblemDetails::busy());
                }
                bytes.reserve_exact(grown - bytes.len());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Bytes::from(bytes))
    };
    let Ok(bytes) = tokio::time::timeout(limit, reading).await else {
        return Err(ProblemDetails::new(
            ProblemKind::BodyLate,
            "Nothing ran; send it again with the same key",
        ));
    };
    bytes
}
