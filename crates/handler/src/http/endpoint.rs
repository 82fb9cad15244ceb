//! HTTP endpoint to which messages are posted.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use oncely_lease::Repeat;
use oncely_net::tls::TlsSettings;

/// An HTTP endpoint that does the work of a consumer (`handler = { http = "https://…" }`).
#[derive(Clone)]
pub struct HttpEndpoint {
    /// Its URL, `http` or `https`.
    pub url: url::Url,
    /// Whether a call may be repeated that may have happened.
    pub repeat: Repeat,
    /// Longest call, from its connection to the last byte of the answer. After it, it is unknown whether the call happened.
    pub timeout: Duration,
    /// Headers of each request, by name. Their values may hold secrets.
    pub headers: BTreeMap<String, SecretString>,
    /// A file with a bearer token, read for each call.
    pub token_file: Option<PathBuf>,
    /// TLS settings; `None` for an endpoint that is called in plaintext.
    pub tls: Option<TlsSettings>,
}

impl fmt::Debug for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpEndpoint")
            .field("url", &self.redacted())
            .field("repeat", &self.repeat)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl HttpEndpoint {
    /// Returns the endpoint without path and query, which may hold a secret, as those of webhooks do.
    #[doc(hidden)]
    pub fn redacted(&self) -> String {
        format!("POST {}", self.url.origin().ascii_serialization())
    }
}
