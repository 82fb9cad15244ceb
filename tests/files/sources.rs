//! The sources of the product, for tests that read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Crates that hold several modules; each other crate is one module.
pub(crate) const OF_SEVERAL_MODULES: [&str; 6] = ["core", "net", "ops", "process", "relay", "worker"];

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All sources below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The folders of the product's crates, by name: those below `crates` and `stores`, without the stores that are workspaces of their own.
pub(crate) fn crates() -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for folder in ["crates", "stores"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let manifest = std::fs::read_to_string(path.join("Cargo.toml")).unwrap();
            if !manifest.contains("[workspace]") {
                found.insert(name, path.join("src"));
            }
        }
    }
    found
}

/// All sources of the product's crates.
pub(crate) fn sources() -> Vec<PathBuf> {
    crates().values().flat_map(|folder| files(folder)).collect()
}

/// All sources of the programs that test and measure the product.
pub(crate) fn tools() -> Vec<PathBuf> {
    ["bench", "testbed", "xtask"].iter().flat_map(|name| files(&root().join(name).join("src"))).collect()
}

/// The folder of a crate's sources.
pub(crate) fn source(name: &str) -> PathBuf {
    root().join("crates").join(name).join("src")
}

/// A file's code without its tests.
pub(crate) fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

/// The same without the lines that are comments.
pub(crate) fn statements(path: &Path) -> String {
    let code = code(path);
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    lines.join("\n")
}

/// The crate and the path in it of a source.
pub(crate) fn place(path: &Path) -> (String, Vec<String>) {
    let inside = path.strip_prefix(root()).unwrap().with_extension("");
    let parts: Vec<_> =
        inside.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect();
    let src = parts.iter().position(|part| part == "src").unwrap();
    (parts[src - 1].clone(), parts[src + 1..].to_vec())
}

/// The module that a source belongs to: its crate, or the first folder or file in one of several modules.
pub(crate) fn module(path: &Path) -> String {
    let (name, inside) = place(path);
    if OF_SEVERAL_MODULES.contains(&name.as_str()) { inside[0].clone() } else { name }
}
