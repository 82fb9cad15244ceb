//! Certificates and a key, read from files.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{FileError, TlsSettings, provider};

/// Valid contents of the files.
pub struct TlsFiles {
    /// Configured authorities.
    pub ca: Option<Ca>,
    /// This program's certificate and key.
    pub identity: Option<TlsIdentity>,
}

/// Authorities.
pub struct Ca {
    pub pem: Vec<u8>,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
}

/// A certificate with its key.
pub struct TlsIdentity {
    pub pem: Vec<u8>,
    pub key_pem: Vec<u8>,
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivateKeyDer<'static>,
}

impl TlsFiles {
    /// Reads the files. Blocks: they are small.
    ///
    /// # Errors
    /// All problems of the files.
    pub fn read(settings: &TlsSettings) -> Result<Self, Vec<FileError>> {
        let mut wrong = Vec::new();
        let ca = sound("ca", settings.ca.as_deref(), ca, &mut wrong);
        let chain = sound("cert", settings.cert.as_deref(), certificates, &mut wrong);
        let key = sound("key", settings.key.as_deref(), key, &mut wrong);
        let identity = match (chain, key) {
            (Some((pem, chain)), Some((key_pem, key))) => {
                let fits = |_: &Path| fits(&chain, &key);
                let fits = sound("key", settings.key.as_deref(), fits, &mut wrong);
                fits.map(|()| TlsIdentity { pem, key_pem, chain, key })
            }
            _ => None,
        };
        if wrong.is_empty() { Ok(Self { ca, identity }) } else { Err(wrong) }
    }
}

/// Returns a file's valid contents, or adds the problem.
fn sound<T>(
    setting: &'static str,
    path: Option<&Path>,
    read: impl FnOnce(&Path) -> Result<T, String>,
    wrong: &mut Vec<FileError>,
) -> Option<T> {
    let path = path?;
    read(path).map_err(|what| wrong.push(FileError { setting, path: path.to_owned(), what })).ok()
}

fn fits(chain: &[CertificateDer<'static>], key: &PrivateKeyDer<'static>) -> Result<(), String> {
    let what = match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider()) {
        Ok(_) => return Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => "is not the key of the certificate in cert",
        Err(rustls::Error::InvalidCertificate(_)) => "has a certificate in cert that can't be read",
        Err(_) => "holds a private key of a kind that is not known here (RSA, ECDSA P-256 or P-384, Ed25519)",
    };
    Err(what.to_owned())
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("can't be read: {error}"))
}

fn ca(path: &Path) -> Result<Ca, String> {
    let (pem, certificates) = certificates(path)?;
    let mut store = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        store
            .add(certificate.clone())
            .map_err(|_| format!("certificate {} of {} is not sound", index + 1, certificates.len()))?;
    }
    Ok(Ca { pem, certificates })
}

fn certificates(path: &Path) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>), String> {
    let pem = bytes(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| pem_error_text(&error).to_owned())?;
    match certificates.is_empty() {
        true => Err("holds no certificate (a block BEGIN CERTIFICATE of PEM)".to_owned()),
        false => Ok((pem, certificates)),
    }
}

fn key(path: &Path) -> Result<(Vec<u8>, PrivateKeyDer<'static>), String> {
    let pem = bytes(path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok((pem, key)),
        Err(pem::Error::NoItemsFound) => {
            Err("holds no private key (a block BEGIN PRIVATE KEY of PEM, not encrypted)".to_owned())
        }
        Err(error) => Err(pem_error_text(&error).to_owned()),
    }
}

/// Replaces the library's text, which quotes lines of the file.
fn pem_error_text(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "is cut off: a block of PEM has no end",
        pem::Error::SectionTooLarge => "has a block of PEM that is too large",
        _ => "is not PEM: a block can't be decoded",
    }
}
