//! A request, whole, and what makes two of them the same.

use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::Uri;
use http::request::Parts;
use http_body_util::{BodyExt as _, LengthLimitError};

use super::body::BoxError;
use super::limits::Arrived;
use super::problem::{Kind, Problem};
use super::settings::{POLICY, Settings};
use crate::fingerprint::{Fingerprint, FingerprintPolicy};
use crate::identity::Identity;
use crate::lease;
use crate::trace_parent::TraceParent;

/// What a request with a key asks for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) identity: Identity,
    pub(super) fingerprint: Option<Fingerprint>,
    /// When the key was made, where it tells.
    pub(super) made: Option<DateTime<Utc>>,
    pub(super) trace_id: Option<String>,
}

impl Asked {
    pub(super) fn new(
        settings: &Settings,
        identity: Identity,
        made: Option<DateTime<Utc>>,
        parts: &Parts,
        body: &Bytes,
    ) -> Self {
        let fingerprint = match &settings.fingerprint {
            Some(policy) => policy.of(body),
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
                        // Nobody differs from somebody without a name.
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

    /// What makes two requests the same, as a store of leases takes it: where bodies are compared, that of a message with this body.
    pub(super) fn digest(&self, settings: &Settings, body: &Bytes) -> [u8; 32] {
        match (&settings.fingerprint, &self.fingerprint) {
            (Some(FingerprintPolicy::Body), _) => lease::fingerprint(body),
            (_, Some(print)) => lease::fingerprint(&print.0),
            // Nothing is compared: all are the same.
            (_, None) => lease::fingerprint(&[]),
        }
    }
}

/// What the client has asked for: a router that is nested in another one sees the rest of the path.
fn asked_for(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// The body, if all of it comes in time, it is no longer than `most`, and there is room for it.
pub(super) async fn read<B>(
    body: B,
    most: usize,
    limit: Duration,
    arrived: &mut Arrived,
) -> Result<Bytes, Problem>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let too_large = || Problem::new(Kind::TooLarge, format!("A request with a key has {most} bytes at most"));
    // Without reading it.
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut body = pin!(body);
    let reading = async {
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| match error.into().is::<LengthLimitError>() {
                // Of a layer before this one.
                true => too_large(),
                false => Problem::new(Kind::BodyIncomplete, "Nothing ran; send it again with the same key"),
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > most - read.len() {
                return Err(too_large());
            }
            // What is allocated is counted: a buffer that grows has room for twice of what it holds.
            let needed = read.len() + data.len();
            if needed > read.capacity() {
                let grown = needed.max(read.capacity().saturating_mul(2).min(most));
                if !arrived.grow(grown - read.capacity()) {
                    return Err(Problem::busy());
                }
                read.reserve_exact(grown - read.len());
            }
            read.extend_from_slice(&data);
        }
        Ok(Bytes::from(read))
    };
    let Ok(read) = tokio::time::timeout(limit, reading).await else {
        return Err(Problem::new(Kind::BodyLate, "Nothing ran; send it again with the same key"));
    };
    read
}
