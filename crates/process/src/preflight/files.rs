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
pub fn check_secret_files(config: &Config, findings: &mut CheckFindings) {
    check_permissions(&list_secret_files(config), findings);
}

/// Adds a warning for each file that all users of the machine can read. `files`: the setting that names each file, and its path.
fn check_permissions(files: &[(&'static str, PathBuf)], findings: &mut CheckFindings) {
    for (setting, path) in files {
        if let Some(mode) = read_world_readable_mode(path) {
            let text = format!(
                "{} may be read by everybody on this machine (mode {mode:04o}): `chmod o= {0}`",
                path.display()
            );
            findings.add_warning(CHECK, *setting, text);
        }
    }
    let files: Vec<String> = files.iter().map(|(_, path)| path.display().to_string()).collect();
    findings
        .add_read(CHECK, if files.is_empty() { "no files are named".to_owned() } else { files.join(", ") });
}

/// Checks the secret files of a starting process, and logs a warning for each one that all users of the machine can read.
pub fn warn_of_secret_files(config: &Config) {
    log_warnings(&list_secret_files(config));
}

/// Checks the secret files of a starting gateway, and logs a warning for each one that all users of the machine can read.
pub fn warn_of_gateway_files(config: &GatewayConfig) {
    log_warnings(&list_gateway_secret_files(&config.postgres, &config.gateway));
}

/// Checks the permissions of files, and logs the findings.
fn log_warnings(files: &[(&'static str, PathBuf)]) {
    let mut findings = CheckFindings::default();
    check_permissions(files, &mut findings);
    for finding in findings.findings {
        tracing::warn!(place = finding.about, "{}", finding.text);
    }
}

/// Lists the secret files of a configuration, with the setting that names each.
fn list_secret_files(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let mirror = config.mirror.as_ref();
    let files = [
        ("rabbitmq.url_file", config.rabbitmq.url_file.clone()),
        ("rabbitmq.tls.key", key_file(config.rabbitmq.tls.as_ref())),
        ("redis.url_file", mirror.and_then(|mirror| mirror.url_file.clone())),
        ("redis.sentinels_file", mirror.and_then(|mirror| mirror.sentinels_file.clone())),
        ("redis.tls.key", key_file(mirror.and_then(|mirror| mirror.tls.as_ref()))),
        ("encryption.keys", config.encryption.as_ref().and_then(|encryption| encryption.keys.clone())),
        ("traces.tls.key", key_file(config.traces.as_ref().and_then(|traces| traces.tls.as_ref()))),
    ];
    let mut all_files = list_gateway_secret_files(&config.postgres, &config.gateway);
    all_files.extend(files.into_iter().filter_map(|(setting, path)| Some((setting, path?))));
    all_files
}

/// Lists the secret files of a gateway.
fn list_gateway_secret_files(
    settings: &PgSettings,
    gateway: &GatewaySettings,
) -> Vec<(&'static str, PathBuf)> {
    // Includes a key that the URL names in libpq's syntax.
    let postgres = pg::Address::from_settings(settings).ok().and_then(|address| address.tls);
    let files = [
        ("postgres.url_file", settings.url_file.clone()),
        ("postgres.tls.key", key_file(postgres.as_ref().or(settings.tls.as_ref()))),
        ("gateway.tls.key", key_file(gateway.tls.as_ref())),
        ("gateway.listen_tls.key", key_file(gateway.listen_tls.as_ref())),
    ];
    files.into_iter().filter_map(|(setting, path)| Some((setting, path?))).collect()
}

fn key_file(tls: Option<&TlsSettings>) -> Option<PathBuf> {
    tls.and_then(|tls| tls.key.clone())
}

/// Reads the mode of a file that all users of the machine can read: the file's mode and all folders of its path allow it. `None` for any
/// other file.
fn read_world_readable_mode(path: &Path) -> Option<u32> {
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
            assert_eq!(read_world_readable_mode(&file), expected, "{above:o} {between:o} {own:o}");
            // Also through a link.
            let link = folder.path().join("link");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&file, &link).unwrap();
            assert_eq!(read_world_readable_mode(&link), expected);
        }
        assert_eq!(read_world_readable_mode(&folder.path().join("missing")), None);
    }
}
