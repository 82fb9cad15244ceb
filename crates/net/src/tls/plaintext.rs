//! When a connection uses TLS, and when plaintext is allowed: on this machine, or by configuration.

use std::net::IpAddr;

use super::{TlsError, TlsSettings};

/// Returns the TLS settings for a URL's scheme: those of `settings` for `tls_scheme`, else `None` for an allowed plaintext connection.
///
/// # Errors
/// If the connection is not allowed.
pub fn tls_for_scheme(
    url: &url::Url,
    tls_scheme: &str,
    settings: Option<&TlsSettings>,
    allow_plaintext: bool,
    section: &str,
) -> Result<Option<TlsSettings>, TlsError> {
    if url.scheme() == tls_scheme {
        return match cfg!(feature = "tls") {
            true => Ok(Some(settings.cloned().unwrap_or_default())),
            false => Err(TlsError::NotBuilt),
        };
    }
    // Drivers use this machine for a URL without a host.
    let host = url.host_str().unwrap_or("localhost");
    if is_local(host) || allow_plaintext {
        return Ok(None);
    }
    Err(TlsError::Refused(describe_plaintext_refusal(host, &format!("{tls_scheme}://"), section)))
}

/// Returns whether the host is this machine, so that no data leaves it.
pub fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Describes that a plaintext connection to this host is refused, with both remedies: `remedy` to use TLS, or `allow_plaintext` in its
/// section.
pub fn describe_plaintext_refusal(host: &str, remedy: &str, section: &str) -> String {
    format!(
        "goes to {host} in plaintext, password and messages among it: write {remedy}, or allow_plaintext = true in [{section}] if \
         nobody else is on the way there"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_leaves_the_machine_is_local() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"] {
            assert!(is_local(host), "{host}");
        }
        let others =
            ["", "postgres", "localhost.example.com", "10.0.0.1", "128.0.0.1", "0.0.0.0", "[fe80::1]"];
        for host in others.into_iter().chain(["127.0.0.1.example.com"]) {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_scheme_without_tls_leads_off_this_machine_only_where_that_is_allowed() {
        let of =
            |url: &str, allowed| tls_for_scheme(&url.parse().unwrap(), "amqps", None, allowed, "rabbitmq");
        for url in ["amqp://u@localhost", "amqp://127.0.0.1:5672", "amqp://[::1]/%2f"] {
            assert!(matches!(of(url, false), Ok(None)), "{url}");
        }
        assert!(matches!(of("amqp://u:p@broker/%2f", true), Ok(None)));
        let Err(TlsError::Refused(what)) = of("amqp://u:p@broker/%2f", false) else { panic!("not refused") };
        assert!(what.contains("amqps://") && what.contains("allow_plaintext = true in [rabbitmq]"), "{what}");
        // Allowing plaintext does not disable TLS.
        let tls = of("amqps://u:p@broker/%2f", true);
        let is_kept = if cfg!(feature = "tls") {
            matches!(tls, Ok(Some(_)))
        } else {
            matches!(tls, Err(TlsError::NotBuilt))
        };
        assert!(is_kept, "{tls:?}");
    }
}
