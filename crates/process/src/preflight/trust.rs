//! Reports whether a connection uses TLS, and why a handshake failed.

use super::{CheckFindings, Verdict};
use oncely_net::tls::{TlsFault, TlsSettings};

/// A server, for checks of its TLS.
pub struct Trust {
    /// Check, such as `pg.tls`.
    pub(crate) check: &'static str,
    /// Section, such as `postgres`.
    pub(crate) section: &'static str,
}

pub(crate) const POSTGRES: Trust = Trust { check: "pg.tls", section: "postgres" };
pub const RABBITMQ: Trust = Trust { check: "mq.tls", section: "rabbitmq" };
pub const REDIS: Trust = Trust { check: "redis.tls", section: "redis" };

impl Trust {
    /// Reports the protection of a connection.
    pub fn report_protection(
        &self,
        tls: Option<&TlsSettings>,
        allow_plaintext: bool,
        findings: &mut CheckFindings,
    ) {
        let Some(tls) = tls else {
            findings.add_read(self.check, "plaintext");
            if allow_plaintext {
                let text = "is true: where the server is on another machine, a party on the way there can read and change everything";
                findings.add_info(self.check, format!("{}.allow_plaintext", self.section), text);
            }
            return;
        };
        let authorities = match &tls.ca {
            Some(ca) => format!("the authorities of {}", ca.display()),
            None => "the authorities that this machine trusts".to_owned(),
        };
        let certificate = match &tls.cert {
            Some(cert) => format!("our certificate is {}", cert.display()),
            None => "without a certificate of our own".to_owned(),
        };
        findings.add_read(self.check, format!("TLS; the server is verified by {authorities}; {certificate}"));
    }

    /// Reports why no trusted connection was made.
    pub fn report_fault(&self, fault: TlsFault, server: &str, error: &str, findings: &mut CheckFindings) {
        let text = match fault {
            TlsFault::Refused => format!("{server}: {error}"),
            fault => format!("{server}: {} ({error})", fault.explanation(self.section)),
        };
        findings.add(self.check, Verdict::Error, format!("{}.tls", self.section), text);
        findings.set_kind(fault);
    }
}
