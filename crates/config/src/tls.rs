//! `tls` and `allow_plaintext` of a server's section.

use super::{Problems, Section};
use oncely_net::tls::{self, NOT_BUILT, TlsError, TlsSettings};

/// Reads `tls = { ca, cert, key, server_name }`.
pub(super) fn tls(section: &mut Section, problems: &mut Problems) -> Option<TlsSettings> {
    let is_set = section.has("tls");
    let mut table = section.table("tls", problems);
    let mut text = |key| table.text(key, problems);
    let settings = TlsSettings {
        ca: text("ca").map(Into::into),
        cert: text("cert").map(Into::into),
        key: text("key").map(Into::into),
        server_name: text("server_name"),
    };
    let place = section.place("tls");
    table.finish(problems);
    if !is_set {
        return None;
    }
    if !cfg!(feature = "tls") {
        problems.add(&place, NOT_BUILT);
    }
    match (&settings.cert, &settings.key) {
        (Some(_), None) => {
            problems.add(format!("{place}.key"), "is missing: cert is of no use without its key")
        }
        (None, Some(_)) => {
            problems.add(format!("{place}.cert"), "is missing: key is of no use without its certificate")
        }
        _ => {}
    }
    if let Some(name) = &settings.server_name
        && !is_name(name)
    {
        problems.add(format!("{place}.server_name"), "is not the name of a machine, as certificates have it");
    }
    for wrong in tls::problems(&settings) {
        problems.add(format!("{place}.{}", wrong.setting), wrong.to_string());
    }
    Some(settings)
}

/// Reads `{ cert, key }` of a listener: the program's certificate for its clients.
pub(super) fn served(
    key: &'static str,
    section: &mut Section,
    problems: &mut Problems,
) -> Option<TlsSettings> {
    let is_set = section.has(key);
    let place = section.place(key);
    let mut table = section.table(key, problems);
    let mut file = |key| table.text(key, problems).map(Into::into);
    let settings = TlsSettings { cert: file("cert"), key: file("key"), ..TlsSettings::default() };
    table.finish(problems);
    if !is_set {
        return None;
    }
    if !cfg!(feature = "tls") {
        problems.add(&place, NOT_BUILT);
    }
    for (name, file) in [("cert", &settings.cert), ("key", &settings.key)] {
        if file.is_none() {
            problems.add(
                format!("{place}.{name}"),
                "is missing: clients are shown a certificate, and it has a key",
            );
        }
    }
    for wrong in tls::problems(&settings) {
        problems.add(format!("{place}.{}", wrong.setting), wrong.to_string());
    }
    Some(settings)
}

pub(super) fn allow_plaintext(section: &mut Section, problems: &mut Problems) -> bool {
    section.boolean("allow_plaintext", false, problems)
}

/// Reports why a connection with the URL at `place` is not allowed; reports nothing if it is no URL.
pub(super) fn report_refused_connection<T>(
    meant: Option<Result<T, TlsError>>,
    place: &str,
    problems: &mut Problems,
) {
    if let Some(Err(error)) = meant {
        problems.add(place, error.to_string());
    }
}

fn is_name(name: &str) -> bool {
    #[cfg(feature = "tls")]
    return rustls::pki_types::ServerName::try_from(name).is_ok();
    #[cfg(not(feature = "tls"))]
    return !name.is_empty();
}
