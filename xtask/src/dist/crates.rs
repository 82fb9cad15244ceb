//! The crates that are in the programs: what Cargo says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Deserialize;

use super::programs::{FEATURES, target};
use super::source::Source;
use crate::process;

/// One of them.
#[derive(Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) description: Option<String>,
    /// As an SPDX expression.
    pub(super) license: String,
    pub(super) repository: Option<String>,
    pub(super) authors: Vec<String>,
    /// SHA-256 of its package, where it comes from a registry.
    pub(super) checksum: Option<String>,
    /// Where its files are.
    pub(super) folder: PathBuf,
    /// Keys of those that it uses.
    pub(super) uses: BTreeSet<Key>,
}

/// Name and version.
pub(super) type Key = (String, String);

/// All that are linked into the programs, the product itself among them.
#[derive(Debug)]
pub(super) struct Crates(BTreeMap<Key, Crate>);

impl Crates {
    /// As the lock file of these sources has them, for the released features.
    pub(super) fn read(source: &Source) -> anyhow::Result<Self> {
        let linked = find_linked(source)?;
        let metadata: Metadata = serde_json::from_str(&cargo(
            source,
            &[
                "metadata",
                "--format-version=1",
                "--locked",
                "--filter-platform",
                &target(),
                "--features",
                FEATURES,
            ],
        )?)?;
        let lock: Lock = toml::from_str(&source.text("Cargo.lock")?)?;
        let checksums: BTreeMap<Key, String> = lock
            .package
            .into_iter()
            .filter_map(|package| Some(((package.name, package.version), package.checksum?)))
            .collect();
        let keys: BTreeMap<&str, Key> = metadata
            .packages
            .iter()
            .map(|package| (package.id.as_str(), (package.name.clone(), package.version.clone())))
            .collect();
        let mut uses: BTreeMap<&str, BTreeSet<Key>> = BTreeMap::new();
        for node in &metadata.resolve.nodes {
            let normal = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            let used = normal.filter_map(|dep| keys.get(dep.pkg.as_str()));
            uses.insert(&node.id, used.filter(|key| linked.contains(*key)).cloned().collect());
        }
        let mut crates = BTreeMap::new();
        for package in &metadata.packages {
            let key = (package.name.clone(), package.version.clone());
            if !linked.contains(&key) {
                continue;
            }
            let license = package.license.as_deref();
            let license = license.with_context(|| format!("{} {} names no licence", key.0, key.1))?;
            let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
            let described = Crate {
                name: package.name.clone(),
                version: package.version.clone(),
                description: package.description.as_deref().map(one_line),
                license: expression(license),
                repository: package.repository.clone(),
                authors: package.authors.clone(),
                checksum: checksums.get(&key).cloned(),
                folder: folder.to_owned(),
                uses: uses.remove(package.id.as_str()).unwrap_or_default(),
            };
            crates.insert(key, described);
        }
        let missing: Vec<_> = linked.iter().filter(|key| !crates.contains_key(*key)).collect();
        anyhow::ensure!(missing.is_empty(), "cargo metadata does not know {missing:?}");
        Ok(Self(crates))
    }

    /// The product.
    pub(super) fn product(&self) -> anyhow::Result<&Crate> {
        self.0.values().find(|one| one.name == "oncely").context("the product is not in its own programs")
    }

    /// Other people's, by name.
    pub(super) fn others(&self) -> impl Iterator<Item = &Crate> {
        self.0.values().filter(|one| one.name != "oncely")
    }
}

/// What `cargo tree` finds: it knows which features the programs alone turn on, which `cargo metadata` does not.
fn find_linked(source: &Source) -> anyhow::Result<BTreeSet<Key>> {
    let triple = target();
    let arguments = ["tree", "--locked", "--package", "oncely", "--features", FEATURES, "--target", &triple];
    let output = ["--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let text = cargo(source, &[&arguments[..], &output[..]].concat())?;
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut words = line.split(' ');
            let (name, version) = (words.next(), words.next().and_then(|word| word.strip_prefix('v')));
            let (name, version) = name.zip(version).with_context(|| format!("cargo tree says {line:?}"))?;
            Ok((name.to_owned(), version.to_owned()))
        })
        .collect()
}

fn cargo(source: &Source, arguments: &[&str]) -> anyhow::Result<String> {
    let output = process::cargo(&source.folder).args(arguments).output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "cargo {}: {said}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// Before SPDX expressions were asked for, `/` stood for OR.
fn expression(license: &str) -> String {
    license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    authors: Vec<String>,
    manifest_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Debug, Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_licence_becomes_an_expression() {
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("MIT/Apache-2.0"), "MIT OR Apache-2.0");
        assert_eq!(expression("(MIT OR Apache-2.0) AND Unicode-3.0"), "(MIT OR Apache-2.0) AND Unicode-3.0");
    }
}
