//! Causes of failed trust between a server and this program, by the types of errors, never by their texts.

use std::error::Error;
use std::sync::Arc;

use serde::Serialize;

use super::TlsError;

/// Cause of a failed trusted connection. Its name is part of the public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TlsFault {
    /// No trusted authority has signed the server's certificate.
    UnknownCa,
    /// The server's certificate has other names.
    WrongName,
    /// The server's certificate has expired, or is not valid yet.
    Expired,
    /// The server's certificate is invalid for another reason.
    BadCertificate,
    /// The server requires a certificate, and none is configured.
    ClientCertificateMissing,
    /// The server rejects the configured certificate.
    ClientCertificateRefused,
    /// The server does not use TLS.
    NotTls,
    /// The server accepts connections and does not answer a handshake.
    Silent,
    /// The two sides have no version or method in common.
    Incompatible,
    /// A file is missing or wrong, or plaintext is refused.
    Refused,
}

impl TlsFault {
    /// All causes.
    pub const ALL: [Self; 10] = [
        Self::UnknownCa,
        Self::WrongName,
        Self::Expired,
        Self::BadCertificate,
        Self::ClientCertificateMissing,
        Self::ClientCertificateRefused,
        Self::NotTls,
        Self::Silent,
        Self::Incompatible,
        Self::Refused,
    ];

    /// Returns the fault's public name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownCa => "unknown_ca",
            Self::WrongName => "wrong_name",
            Self::Expired => "expired",
            Self::BadCertificate => "bad_certificate",
            Self::ClientCertificateMissing => "client_certificate_missing",
            Self::ClientCertificateRefused => "client_certificate_refused",
            Self::NotTls => "not_tls",
            Self::Silent => "silent",
            Self::Incompatible => "incompatible",
            Self::Refused => "refused",
        }
    }

    /// Returns the fault's description and remedy; `section`: the server's section of the configuration.
    #[must_use]
    pub fn explanation(self, section: &str) -> String {
        let (problem, remedy) = match self {
            Self::UnknownCa => (
                "the server's certificate is not issued by a trusted authority, so its identity is unknown",
                format!("name the right one in {section}.tls.ca"),
            ),
            Self::WrongName => (
                "the server's certificate is for other names than the one it was called by",
                format!("call it by one of them in {section}.url, or give it a certificate for this one"),
            ),
            Self::Expired => (
                "the server's certificate has expired, or is not valid yet",
                "renew it there; look at the clocks of both machines".to_owned(),
            ),
            Self::BadCertificate => {
                ("the server's certificate is not fit for a server", "give it another one".to_owned())
            }
            Self::ClientCertificateMissing => (
                "the server demands a certificate from us, and none is configured",
                format!("name one in {section}.tls.cert and {section}.tls.key"),
            ),
            Self::ClientCertificateRefused => (
                "the server refuses our certificate: expired, of an authority that it does not trust, or for another user",
                format!("renew the one in {section}.tls.cert, or let the server trust its authority"),
            ),
            Self::NotTls => (
                "the server speaks no TLS here",
                "turn TLS on there, or name its port for TLS; no user and no password was sent to it"
                    .to_owned(),
            ),
            Self::Silent => (
                "the server takes connections and says nothing to a handshake: it hangs, or speaks no TLS here",
                "name its port for TLS, or look at it; no user and no password was sent to it".to_owned(),
            ),
            Self::Incompatible => (
                "the server breaks the handshake off: no version or method in common (TLS 1.2 and 1.3 are known here), or, where it knows no TLS \
                 1.3, it demands a certificate",
                format!("update it, or name one in {section}.tls.cert and {section}.tls.key"),
            ),
            Self::Refused => ("it must not be done like this", format!("look at [{section}]")),
        };
        format!("{problem}; {remedy}")
    }
}

/// Finds the first error of a type in a chain of causes; `None` if the chain has none.
fn find_cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // The content of an I/O error is not its source: its source is the content's.
        let content = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        // Nor is the content of a shared error its source.
        let shared = error.downcast_ref::<Arc<dyn Error + Send + Sync>>().map(AsRef::as_ref);
        next = match (content, shared) {
            (Some(content), _) => Some(content as &(dyn Error + 'static)),
            (None, Some(shared)) => Some(shared as &(dyn Error + 'static)),
            (None, None) => error.source(),
        };
    }
    None
}

/// Classifies a connection error by its TLS fault; `None` for other errors. `has_certificate`: whether this program has a certificate.
#[cfg_attr(not(feature = "tls"), allow(unused_variables))]
pub fn classify_fault(error: &(dyn Error + 'static), has_certificate: bool) -> Option<TlsFault> {
    match find_cause::<TlsError>(error) {
        Some(TlsError::Silent(_)) => return Some(TlsFault::Silent),
        Some(TlsError::NotTls) => return Some(TlsFault::NotTls),
        Some(_) => return Some(TlsFault::Refused),
        None => {}
    }
    #[cfg(feature = "tls")]
    return find_cause::<rustls::Error>(error)
        .and_then(|error| classify_rustls_error(error, has_certificate));
    #[cfg(not(feature = "tls"))]
    None
}

/// Classifies an error of the TLS library as the fault that an operator can mend; `None` for other errors.
#[cfg(feature = "tls")]
fn classify_rustls_error(error: &rustls::Error, has_certificate: bool) -> Option<TlsFault> {
    use rustls::AlertDescription as Alert;
    use rustls::CertificateError as Wrong;
    use rustls::Error as Tls;
    Some(match error {
        Tls::InvalidCertificate(Wrong::UnknownIssuer) => TlsFault::UnknownCa,
        Tls::InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. }) => {
            TlsFault::WrongName
        }
        Tls::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => TlsFault::Expired,
        Tls::InvalidCertificate(_) | Tls::NoCertificatesPresented => TlsFault::BadCertificate,
        Tls::AlertReceived(Alert::CertificateRequired | Alert::NoCertificate) => {
            TlsFault::ClientCertificateMissing
        }
        Tls::AlertReceived(
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied,
        ) if has_certificate => TlsFault::ClientCertificateRefused,
        // The alert of servers with TLS 1.2.
        Tls::AlertReceived(Alert::BadCertificate) => TlsFault::ClientCertificateMissing,
        Tls::AlertReceived(
            Alert::ProtocolVersion | Alert::InsufficientSecurity | Alert::HandshakeFailure,
        )
        | Tls::PeerIncompatible(_) => TlsFault::Incompatible,
        Tls::InvalidMessage(_) => TlsFault::NotTls,
        _ => return None,
    })
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_fault_is_found_below_whatever_wraps_it() {
        let unknown = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let inside = io::Error::new(io::ErrorKind::InvalidData, unknown());
        assert_eq!(classify_fault(&inside, false), Some(TlsFault::UnknownCa));
        assert_eq!(classify_fault(&io::Error::other(inside), false), Some(TlsFault::UnknownCa));
        let shared: Arc<dyn Error + Send + Sync> = Arc::new(io::Error::other(unknown()));
        assert_eq!(classify_fault(&shared, false), Some(TlsFault::UnknownCa));
        assert_eq!(classify_fault(&io::Error::from(io::ErrorKind::ConnectionRefused), false), None);
    }

    #[test]
    fn an_alert_is_about_our_certificate_only_where_there_is_one() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA);
        assert_eq!(classify_fault(&alert, true), Some(TlsFault::ClientCertificateRefused));
        assert_eq!(classify_fault(&alert, false), None);
    }

    #[test]
    fn a_fault_is_told_by_its_name() {
        for fault in TlsFault::ALL {
            assert_eq!(serde_json::to_value(fault).unwrap(), fault.as_str());
        }
    }
}
