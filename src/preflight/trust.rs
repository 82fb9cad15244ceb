//! Is a connection protected, and if it is none, was that for lack of trust?

use super::{Found, Verdict};
use crate::tls::{TlsFault, TlsSettings};

/// A server, as far as trust in it goes.
pub(crate) struct Trust {
    /// `pg.tls`.
    pub(crate) check: &'static str,
    /// `postgres`.
    pub(crate) section: &'static str,
}

pub(crate) const POSTGRES: Trust = Trust { check: "pg.tls", section: "postgres" };
pub(crate) const RABBITMQ: Trust = Trust { check: "mq.tls", section: "rabbitmq" };
pub(crate) const REDIS: Trust = Trust { check: "redis.tls", section: "redis" };

impl Trust {
    /// There is a connection: what protects it.
    pub(crate) fn kept(&self, tls: Option<&TlsSettings>, allow_plaintext: bool, found: &mut Found) {
        let Some(tls) = tls else {
            found.read(self.check, "plaintext");
            if allow_plaintext {
                let what = "is true: where the server is on another machine, whoever is on the way there can read and change everything";
                found.info(self.check, format!("{}.allow_plaintext", self.section), what);
            }
            return;
        };
        let by = match &tls.ca {
            Some(ca) => format!("the authorities of {}", ca.display()),
            None => "the authorities that this machine trusts".to_owned(),
        };
        let own = match &tls.cert {
            Some(cert) => format!("our certificate is {}", cert.display()),
            None => "without a certificate of our own".to_owned(),
        };
        found.read(self.check, format!("TLS; the server is verified by {by}; {own}"));
    }

    /// There is none, and this is why.
    pub(crate) fn broken(&self, fault: TlsFault, server: &str, error: &str, found: &mut Found) {
        let what = match fault {
            TlsFault::Refused => format!("{server}: {error}"),
            fault => format!("{server}: {} ({error})", fault.told(self.section)),
        };
        found.add(self.check, Verdict::Error, format!("{}.tls", self.section), what);
        found.kind(fault);
    }
}
