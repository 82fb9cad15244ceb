//! A systemd unit, as far as it can be kept to without systemd.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Settings that a trial keeps to in its own way; a unit that leaves one out would be tried as what it is not.
const KEPT: [(&str, &str); 5] = [
    ("CapabilityBoundingSet", ""),
    ("DynamicUser", "yes"),
    ("NoNewPrivileges", "yes"),
    ("PrivateTmp", "yes"),
    ("ProtectSystem", "strict"),
];

/// What a unit says of how its service is started.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) name: String,
    /// Run one after the other; of a service that stays it is one.
    pub(super) commands: Vec<Vec<String>>,
    /// Does it say when it is ready?
    pub(super) notifies: bool,
    environment: Vec<(String, String)>,
    environment_files: Vec<PathBuf>,
    /// Names of files that it gets to read, and where they are.
    pub(super) credentials: Vec<(String, PathBuf)>,
}

impl Unit {
    /// The installed unit of this name.
    pub(super) fn read(root: &Path, name: &str) -> anyhow::Result<Self> {
        let path = root.join("usr/lib/systemd/system").join(name);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(name, &text)
    }

    fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let settings: Vec<(&str, &str)> = text
            .lines()
            .filter(|line| !line.starts_with(['#', ';', '[']))
            .filter_map(|line| line.split_once('='))
            .collect();
        for kept in KEPT {
            anyhow::ensure!(settings.contains(&kept), "{name}: there is no {}={}", kept.0, kept.1);
        }
        let values = |key: &'static str| {
            settings.iter().filter(move |(name, _)| *name == key).map(|(_, value)| *value)
        };
        let folder = credentials_folder(name);
        let folder = folder.display().to_string();
        let resolved = |value: &str| value.replace("%d", &folder);
        let commands: Vec<Vec<String>> =
            values("ExecStart").map(|line| line.split_whitespace().map(resolved).collect()).collect();
        anyhow::ensure!(!commands.is_empty(), "{name}: there is no ExecStart");
        let environment = values("Environment").filter_map(|setting| setting.split_once('='));
        let credentials = values("LoadCredential").filter_map(|setting| setting.split_once(':'));
        Ok(Self {
            name: name.to_owned(),
            notifies: values("Type").any(|kind| kind == "notify"),
            environment: environment.map(|(name, value)| (name.to_owned(), resolved(value))).collect(),
            // The minus says that it may be missing.
            environment_files: values("EnvironmentFile")
                .map(|path| path.trim_start_matches('-').into())
                .collect(),
            credentials: credentials.map(|(name, path)| (name.to_owned(), path.into())).collect(),
            commands,
        })
    }

    /// Its whole environment, with what its files in `root` say.
    pub(super) fn environment(&self, root: &Path) -> anyhow::Result<Vec<(String, String)>> {
        let mut environment = self.environment.clone();
        for file in &self.environment_files {
            let path = root.join(file.strip_prefix("/")?);
            let text = match std::fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                read => read.with_context(|| format!("cannot read {}", path.display()))?,
            };
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let settings = lines.filter_map(|line| line.split_once('='));
            environment.extend(settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        Ok(environment)
    }
}

/// Where a service finds its credentials.
pub(super) fn credentials_folder(name: &str) -> PathBuf {
    Path::new("/run/credentials").join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: &str = "[Service]\nType=notify\nExecStart=/usr/bin/oncely worker --secret %d/key\n\
                        EnvironmentFile=-/etc/oncely/worker.environment\nEnvironment=ONCELY_LOG__FORMAT=json\n\
                        LoadCredential=key:/etc/oncely/key\n# DynamicUser=no\nDynamicUser=yes\nCapabilityBoundingSet=\n\
                        NoNewPrivileges=yes\nPrivateTmp=yes\nProtectSystem=strict\n";

    #[test]
    fn a_unit_is_read() {
        let unit = Unit::parse("a.service", UNIT).unwrap();
        assert_eq!(
            unit.commands,
            [["/usr/bin/oncely", "worker", "--secret", "/run/credentials/a.service/key"]]
        );
        assert!(unit.notifies);
        assert_eq!(unit.credentials, [("key".to_owned(), PathBuf::from("/etc/oncely/key"))]);
        let environment = unit.environment(Path::new("/nowhere")).unwrap();
        assert_eq!(environment, [("ONCELY_LOG__FORMAT".to_owned(), "json".to_owned())]);
        let open = UNIT.replace("ProtectSystem=strict", "ProtectSystem=full");
        assert!(Unit::parse("a.service", &open).unwrap_err().to_string().contains("ProtectSystem=strict"));
    }
}
