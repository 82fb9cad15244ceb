//! Files that no compiler reads: the Dockerfile, the example configuration, the package, and the README's commands. No container
//! engine is needed.

use std::collections::BTreeSet;
use std::path::Path;

use oncely::config::Config;
use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_dockerfile_copies_what_is_there_and_runs_as_nobody() {
    let text = read("Dockerfile");
    let (mut copied, mut user) = (0, None);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["COPY", "--from=build", sources @ .., _] => {
                for source in sources {
                    crate::support::program(source.rsplit('/').next().unwrap());
                }
            }
            ["COPY", sources @ .., _] => {
                for source in sources {
                    assert!(root().join(source).exists(), "{source}");
                    copied += 1;
                }
            }
            ["USER", name] => user = Some((*name).to_owned()),
            _ => {}
        }
    }
    assert!(copied > 5);
    assert_eq!(user.as_deref(), Some("65532:65532"));
    // Whatever the build reads must be copied.
    for needed in [
        "crates",
        "sqlx.toml",
        "sqlx-data.json",
        "migrations",
        "src",
        "stores",
        "oncely.default.toml",
        "README.md",
    ] {
        assert!(text.contains(needed), "{needed}");
    }
    // Cargo reads the manifests of all members.
    let manifest: toml::Value = toml::from_str(&read("Cargo.toml")).unwrap();
    for member in manifest["workspace"]["members"].as_array().unwrap() {
        let folder = member.as_str().unwrap().trim_end_matches("/*");
        let is_copied = |line: &str| {
            line.strip_prefix("COPY ")
                .is_some_and(|words| folder.starts_with(words.split(' ').next().unwrap()))
        };
        assert!(text.lines().any(is_copied), "{folder}");
    }
}

#[test]
fn the_dockerfile_builds_with_the_compiler_that_the_project_names() {
    let toolchain = read("rust-toolchain.toml");
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    assert!(read("Dockerfile").contains(&format!("FROM rust:{channel}-")), "{channel}");
}

/// testbed names what has to be asked for.
#[test]
fn what_the_tasks_and_the_programs_are_built_of_is_what_the_tests_are_built_of() {
    let crates = |packages: &[&str], edges: &str| -> BTreeSet<String> {
        let mut tree = std::process::Command::new(env!("CARGO"));
        tree.args(["tree", "--locked", "--prefix", "none", "--format", "{p} {f}", "--edges"]);
        let output = tree.arg(edges).args(packages).current_dir(root()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        // Those of this workspace stand with their folder.
        text.lines()
            .map(|line| line.trim_end_matches(" (*)"))
            .filter(|line| !line.contains(" (/"))
            .map(str::to_owned)
            .collect()
    };
    let tests = crates(&["--workspace"], "normal,build,dev");
    for packages in [["--package", "xtask"].as_slice(), &["--package", "oncely", "--package", "testbed"]] {
        let alone = crates(packages, "normal,build");
        let twice: Vec<_> = alone.difference(&tests).collect();
        assert!(alone.len() > 100 && twice.is_empty(), "compiled twice, for {packages:?}: {twice:?}");
    }
}

#[test]
fn the_published_package_has_what_its_build_reads_and_no_more() {
    let cargo = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO")).args(arguments).current_dir(root()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = |package: &str| -> BTreeSet<String> {
        cargo(&["package", "--package", package, "--list", "--allow-dirty"])
            .lines()
            .map(str::to_owned)
            .collect()
    };
    for (package, needed) in [
        ("oncely", ["src/lib.rs", "README.md", "LICENSE-MIT"].as_slice()),
        ("oncely-config", &["oncely.default.toml"]),
        ("oncely-handler", &["build.rs", "sqlx.toml", "sqlx-data.json"]),
        (
            "oncely-postgres",
            &["build.rs", "sqlx.toml", "sqlx-data.json", "migrations/20261122000001_cell.up.sql"],
        ),
    ] {
        let listed = listed(package);
        for file in needed {
            assert!(listed.contains(*file), "{package}: {file}");
        }
    }
    let foreign = ["crates/", "tests/", "xtask/", "testbed/", "docs/", "deploy/", "browser/", "bench/"];
    let foreign: Vec<_> = listed("oncely")
        .into_iter()
        .filter(|path| foreign.iter().any(|folder| path.starts_with(folder)))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    // Whatever a published package needs is published.
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let is_published = package["publish"].is_null();
        let is_product = package["name"].as_str().is_some_and(|name| name.starts_with("oncely"));
        assert_eq!(is_published, is_product, "{}", package["name"]);
        if !is_published {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_for_tests = dependency["kind"] == "dev";
            let has_version = dependency["req"] != "*";
            assert!(is_for_tests || has_version, "{}: a path without a version", dependency["name"]);
        }
    }
}

#[test]
fn the_example_configurations_are_valid() {
    for name in ["examples/tour/oncely.toml", "examples/oncely.toml"] {
        let text = read(name)
            + "\n[postgres]\nurl = \"postgres://u@localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n";
        Config::parse(&text).unwrap_or_else(|problems| panic!("{name}: {problems}"));
    }
}

#[test]
fn the_snapshot_of_queries_is_one_object_of_queries() {
    let snapshot: Value = serde_json::from_str(&read("sqlx-data.json")).unwrap();
    let queries = snapshot.as_object().unwrap();
    assert_eq!(queries["db"], "PostgreSQL");
    assert!(queries.len() > 20);
    for (hash, query) in queries.iter().filter(|(name, _)| *name != "db") {
        assert_eq!(hash.len(), 64, "{hash}");
        assert!(query["query"].is_string() && query["describe"].is_object(), "{hash}");
    }
}
