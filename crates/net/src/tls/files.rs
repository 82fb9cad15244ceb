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
    /// If files are missing or invalid: all their problems.
    pub fn read(settings: &TlsSettings) -> Result<Self, Vec<FileError>> {
        let mut errors = Vec::new();
        let ca = read_valid("ca", settings.ca.as_deref(), read_ca, &mut errors);
        let chain = read_valid("cert", settings.cert.as_deref(), read_certificates, &mut errors);
        let key = read_valid("key", settings.key.as_deref(), read_key, &mut errors);
        let identity = match (chain, key) {
            (Some((pem, chain)), Some((key_pem, key))) => {
                let check_pair = |_: &Path| check_key(&chain, &key);
                let pair = read_valid("key", settings.key.as_deref(), check_pair, &mut errors);
                pair.map(|()| TlsIdentity { pem, key_pem, chain, key })
            }
            _ => None,
        };
        if errors.is_empty() { Ok(Self { ca, identity }) } else { Err(errors) }
    }
}

/// Reads a file; `None` if it is not configured, or is invalid, which adds an error.
fn read_valid<T>(
    setting: &'static str,
    path: Option<&Path>,
    read: impl FnOnce(&Path) -> Result<T, String>,
    errors: &mut Vec<FileError>,
) -> Option<T> {
    let path = path?;
    read(path).map_err(|message| errors.push(FileError { setting, path: path.to_owned(), message })).ok()
}

/// Checks that a key is the one of a certificate, and of a supported kind.
fn check_key(chain: &[CertificateDer<'static>], key: &PrivateKeyDer<'static>) -> Result<(), String> {
    let message = match CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider()) {
        Ok(_) => return Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => "is not the key of the certificate in cert",
        Err(rustls::Error::InvalidCertificate(_)) => "has a certificate in cert that can't be read",
        Err(_) => "holds a private key of a kind that is not known here (RSA, ECDSA P-256 or P-384, Ed25519)",
    };
    Err(message.to_owned())
}

fn read_bytes(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("can't be read: {error}"))
}

/// Reads the authorities of a file, and checks each.
fn read_ca(path: &Path) -> Result<Ca, String> {
    let (pem, certificates) = read_certificates(path)?;
    let mut store = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        store
            .add(certificate.clone())
            .map_err(|_| format!("certificate {} of {} is not sound", index + 1, certificates.len()))?;
    }
    Ok(Ca { pem, certificates })
}

/// Reads the certificates of a file, one at least; also returns the text.
fn read_certificates(path: &Path) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>), String> {
    let pem = read_bytes(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| describe_pem_error(&error).to_owned())?;
    match certificates.is_empty() {
        true => Err("holds no certificate (a block BEGIN CERTIFICATE of PEM)".to_owned()),
        false => Ok((pem, certificates)),
    }
}

/// Reads the first private key of a file; also returns the text.
fn read_key(path: &Path) -> Result<(Vec<u8>, PrivateKeyDer<'static>), String> {
    let pem = read_bytes(path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(key) => Ok((pem, key)),
        Err(pem::Error::NoItemsFound) => {
            Err("holds no private key (a block BEGIN PRIVATE KEY of PEM, not encrypted)".to_owned())
        }
        Err(error) => Err(describe_pem_error(&error).to_owned()),
    }
}

/// Describes an error of PEM, in place of the library's text, which quotes lines of the file.
fn describe_pem_error(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "is cut off: a block of PEM has no end",
        pem::Error::SectionTooLarge => "has a block of PEM that is too large",
        _ => "is not PEM: a block can't be decoded",
    }
}
