//! A private authority that issues certificates, and the files that servers and clients read them from.

use std::path::Path;

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// An authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// What somebody proves with who they are, as PEM.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Whom they believe.
    pub ca: String,
    /// Who they are.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl Authority {
    /// One of this name.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// Its own certificate.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Issues a certificate that holds now, for a server with these names or addresses, or for a client that is called `name`.
    pub fn issue(&self, name: &str, names: &[&str]) -> anyhow::Result<Credentials> {
        self.issue_until(name, names, 4096)
    }

    /// The same, and it has expired long ago.
    pub fn issue_expired(&self, name: &str, names: &[&str]) -> anyhow::Result<Credentials> {
        self.issue_until(name, names, 2001)
    }

    fn issue_until(&self, name: &str, names: &[&str], year: i32) -> anyhow::Result<Credentials> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Credentials { ca: self.pem.clone(), cert, key: key.serialize_pem() })
    }
}

impl Credentials {
    /// Writes `ca.pem`, `cert.pem` and `key.pem`, each of them whole at once.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        for (name, text) in [("ca.pem", &self.ca), ("cert.pem", &self.cert), ("key.pem", &self.key)] {
            let part = folder.join(format!("{name}.part"));
            std::fs::write(&part, text).with_context(|| format!("cannot write {}", part.display()))?;
            std::fs::rename(&part, folder.join(name))?;
        }
        Ok(())
    }
}
