//! Server URLs, TLS, and HTTP/1.1 in both directions.

// Between the crates of Oncely, not of its interface: names and types say most.
#![allow(missing_docs)]

#[cfg(feature = "http-client")]
pub mod http_client;
#[cfg(feature = "http-server")]
pub mod http_server;
pub mod server_url;
pub mod tls;
pub mod url_file;
