//! Checks the permissions of files that hold secrets.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::CheckFindings;
use oncely_config::GatewayConfig;
use oncely_config::{Config, GatewaySettings};
use oncely_net::tls::TlsSettings;
use oncely_postgres::{self as pg, PgSettings};

const CHECK: &str = "config.files";

/// Checks the files that hold a private key or a URL with a password. A missing file is reported by its user.
pub fn check_secret_files(config: &Config, found: &mut CheckFindings) {
    check_permissions(&secret_files(config), found);
}

fn check_permissions(files: &[(&'static str, PathBuf)], found: &mut CheckFindings) {
    for (setting, path) in files {
        if let Some(mode) = read_by_everybody(path) {
            let what = format!(
                "{} may be read by everybody on this machine (mode {mode:04o}): `chmod o= {0}`",
                path.display()
            );
            found.warning(CHECK, *setting, what);
        }
    }
    let files: Vec<String> = files.iter().map(|(_, path)| path.display().to_string()).collect();
    found.add_read(CHECK, if files.is_empty() { "no files are named".to_owned() } else { files.join(", ") });
}

/// Checks the files for a starting process, and logs the result once.
pub fn warn_of_secret_files(config: &Config) {
    warn(&secret_files(config));
}

/// Checks the files of a gateway.
pub fn warn_of_gateway_files(config: &GatewayConfig) {
    warn(&gateway_secret_files(&config.postgres, &config.gateway));
}

fn warn(files: &[(&'static str, PathBuf)]) {
    let mut found = CheckFindings::default();
    check_permissions(files, &mut found);
    for finding in found.findings {
        tracing::warn!(place = finding.about, "{}", finding.text);
    }
}

/// Returns the secret files of a configuration, with the setting that names each.
fn secret_files(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let mirror = config.mirror.as_ref();
    let files = [
        ("rabbitmq.url_file", config.rabbitmq.url_file.clone()),
        ("rabbitmq.tls.key", key(config.rabbitmq.tls.as_ref())),
        ("redis.url_file", mirror.and_then(|mirror| mirror.url_file.clone())),
        ("redis.sentinels_file", mirror.and_then(|mirror| mirror.sentinels_file.clone())),
        ("redis.tls.key", key(mirror.and_then(|mirror| mirror.tls.as_ref()))),
        ("encryption.keys", config.encryption.as_ref().and_then(|encryption| encryption.keys.clone())),
        ("traces.tls.key", key(config.traces.as_ref().and_then(|traces| traces.tls.as_ref()))),
    ];
    let mut named = gateway_secret_files(&config.postgres, &config.gateway);
    named.extend(files.into_iter().filter_map(|(setting, path)| Some((setting, path?))));
    named
}

/// Returns the secret files of a gateway.
fn gateway_secret_files(settings: &PgSettings, gateway: &GatewaySettings) -> Vec<(&'static str, PathBuf)> {
    // Includes a key that the URL names in libpq's syntax.
    let postgres = pg::Address::from_settings(settings).ok().and_then(|address| address.tls);
    let files = [
        ("postgres.url_file", settings.url_file.clone()),
        ("postgres.tls.key", key(postgres.as_ref().or(settings.tls.as_ref()))),
        ("gateway.tls.key", key(gateway.tls.as_ref())),
        ("gateway.listen_tls.key", key(gateway.listen_tls.as_ref())),
    ];
    files.into_iter().filter_map(|(setting, path)| Some((setting, path?))).collect()
}

fn key(tls: Option<&TlsSettings>) -> Option<PathBuf> {
    tls.and_then(|tls| tls.key.clone())
}

/// Returns the mode of a file that every user can read: its own mode allows it, and so do all folders of its path.
fn read_by_everybody(path: &Path) -> Option<u32> {
    let path = path.canonicalize().ok()?;
    let mode = |path: &Path| std::fs::metadata(path).ok().map(|data| data.permissions().mode() & 0o7777);
    let own = mode(&path).filter(|mode| mode & 0o004 != 0)?;
    let is_open = path.ancestors().skip(1).all(|folder| mode(folder).is_some_and(|mode| mode & 0o001 != 0));
    is_open.then_some(own)
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};

    use super::*;

    #[test]
    fn a_file_is_everybody_s_where_it_and_all_folders_above_it_are() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, file) = (folder.path().join("inner"), folder.path().join("inner/url"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(&file, "").unwrap();
        let set = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        for (above, between, own, expected) in [
            (0o755, 0o755, 0o644, Some(0o644)),
            (0o711, 0o711, 0o604, Some(0o604)),
            (0o755, 0o755, 0o640, None),
            (0o755, 0o750, 0o644, None),
            (0o700, 0o755, 0o644, None),
        ] {
            set(folder.path(), above);
            set(&inner, between);
            set(&file, own);
            assert_eq!(read_by_everybody(&file), expected, "{above:o} {between:o} {own:o}");
            // Also through a link.
            let link = folder.path().join("link");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&file, &link).unwrap();
            assert_eq!(read_by_everybody(&link), expected);
        }
        assert_eq!(read_by_everybody(&folder.path().join("missing")), None);
    }
}
