//! Exporter to a receiver of OTLP over HTTP.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::SpanExporter as _;
use secrecy::ExposeSecret as _;

use oncely_config::{Config, TraceSettings};

/// Limit of one request with its retries.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds the exporter without sending: an unavailable receiver does not prevent the start.
pub(super) fn build_exporter(
    settings: &TraceSettings,
    config: &Config,
    program: &str,
) -> Result<SpanExporter, String> {
    let headers =
        settings.headers.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned()));
    let builder = SpanExporter::builder()
        .with_http()
        .with_endpoint(settings.endpoint.clone())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(REQUEST_TIMEOUT)
        .with_headers(headers.collect());
    #[cfg(feature = "tls")]
    let builder = match &settings.tls {
        Some(tls) => builder.with_http_client(tls::build_client(tls).map_err(|error| error.to_string())?),
        None => builder,
    };
    let mut exporter = builder.build().map_err(|error| error.to_string())?;
    exporter.set_resource(&build_resource(config, program));
    Ok(exporter)
}

/// Builds the resource of the spans. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence, as is usual.
fn build_resource(config: &Config, program: &str) -> Resource {
    let name = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    Resource::builder_empty()
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", config.worker.name.clone()),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()))
        .with_service_name(name.unwrap_or_else(|| format!("oncely-{program}")))
        .build()
}

#[cfg(feature = "tls")]
mod tls {
    use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
    use opentelemetry_http::HttpClient;
    use opentelemetry_http::hyper::HyperClient;
    use rustls::pki_types::ServerName;

    use super::REQUEST_TIMEOUT;
    use oncely_net::tls::{TlsError, TlsSettings, build_client_config};

    /// Builds a client with the certificates that the files hold now: it opens its connections itself during the process's lifetime.
    pub(super) fn build_client(settings: &TlsSettings) -> Result<impl HttpClient + use<>, TlsError> {
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(build_client_config(settings)?).https_only();
        let connector = match &settings.server_name {
            Some(name) => {
                let to_error = |_| TlsError::Name(name.clone());
                let name = ServerName::try_from(name.clone()).map_err(to_error)?;
                connector.with_server_name_resolver(FixedServerNameResolver::new(name))
            }
            None => connector,
        };
        Ok(HyperClient::new(connector.enable_http1().build(), REQUEST_TIMEOUT, None))
    }
}
