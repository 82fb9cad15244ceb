//! Where messages are posted, and how.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::handler::lease::Repeat;
use crate::tls::TlsSettings;

/// An HTTP endpoint that does the work of a consumer (`handler = { http = "https://…" }`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpEndpoint {
    /// Its URL, `http` or `https`.
    pub url: url::Url,
    /// Whether a call may be repeated that may have happened.
    pub repeat: Repeat,
    /// Longest call, from its connection to the last byte of the answer. After it nobody knows whether the call happened.
    pub timeout: Duration,
    /// Headers of each request, by name. Their values may hold secrets.
    pub headers: BTreeMap<String, SecretString>,
    /// A file with a bearer token, read for each call.
    pub token_file: Option<PathBuf>,
    /// What of TLS is meant; nothing for an endpoint that is called in plaintext.
    pub tls: Option<TlsSettings>,
}

impl HttpEndpoint {
    /// For people: without its query, which may hold a secret.
    pub(crate) fn shown(&self) -> String {
        let mut url = self.url.clone();
        url.set_query(None);
        format!("POST {url}")
    }
}
