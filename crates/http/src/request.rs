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
    /// Time of the key, if it carries one.
    pub(super) made: Option<DateTime<Utc>>,
    pub(super) trace_id: Option<String>,
}

impl RequestIdentity {
    pub(super) fn new(
        settings: &Settings,
        identity: Identity,
        made: Option<DateTime<Utc>>,
        parts: &Parts,
        body: &Bytes,
    ) -> Self {
        let fingerprint = match &settings.fingerprint {
            Some(policy) => policy.fingerprint(body),
            None => {
                let uri = asked_for(parts);
                let principal = settings.principal.as_ref().and_then(|principal| principal(parts));
                Some(Fingerprint::of_parts(
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
        Self { identity, fingerprint, made, trace_id }
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
fn asked_for(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// Reads the body, if it arrives in time, has at most `most` bytes, and fits the limit of received bytes.
pub(super) async fn read<B>(
    body: B,
    most: usize,
    limit: Duration,
    arrived: &mut ReceivedBytes,
) -> Result<Bytes, ProblemDetails>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        ProblemDetails::new(ProblemKind::TooLarge, format!("A request with a key has {most} bytes at most"))
    };
    // Refused before it is read.
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let reading = async {
        let mut read = Vec::new();
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
            if data.len() > most - read.len() {
                return Err(too_large());
            }
            // Allocated capacity is counted: a growing buffer may have twice the capacity that it needs.
            let needed = read.len() + data.len();
            if needed > read.capacity() {
                let grown = needed.max(read.capacity().saturating_mul(2).min(most));
                if !arrived.grow(grown - read.capacity()) {
                    return Err(ProblemDetails::busy());
                }
                read.reserve_exact(grown - read.len());
            }
            read.extend_from_slice(&data);
        }
        Ok(Bytes::from(read))
    };
    let Ok(read) = tokio::time::timeout(limit, reading).await else {
        return Err(ProblemDetails::new(
            ProblemKind::BodyLate,
            "Nothing ran; send it again with the same key",
        ));
    };
    read
}
