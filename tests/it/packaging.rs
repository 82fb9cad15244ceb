//! Files that no compiler reads: the Compose file against its schema and against the repository, the Dockerfile, the
//! example configuration, and the README's commands. No container engine is needed.

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

/// The Compose file with its merge keys (`<<`) resolved.
fn compose() -> Value {
    let mut yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read("docker-compose.yml")).unwrap();
    yaml.apply_merge().unwrap();
    serde_json::to_value(yaml).unwrap()
}

#[test]
fn the_compose_file_follows_its_schema() {
    let schema: Value = serde_json::from_str(&read("tests/data/compose-spec.json")).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&compose())
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, Vec::<String>::new());
    // The check can fail.
    let mut broken = compose();
    broken["services"]["worker"]["restart_polcy"] = Value::from("always");
    assert!(!validator.is_valid(&broken));
}

#[test]
fn every_image_is_pinned_and_every_server_has_a_health_check() {
    let compose = compose();
    for (name, service) in compose["services"].as_object().unwrap() {
        let image = service["image"].as_str().unwrap();
        let tag = image.rsplit_once(':').unwrap_or_else(|| panic!("{name}: {image} has no tag")).1;
        assert!(tag.chars().filter(|c| *c == '.').count() >= 1, "{name}: {tag} names no version");
        let is_server = ["postgres", "rabbitmq", "redis"].contains(&name.as_str());
        assert_eq!(service["healthcheck"].is_object(), is_server, "{name}");
        for (on, how) in service["depends_on"].as_object().into_iter().flatten() {
            let target = &compose["services"][on.as_str()];
            assert!(target.is_object(), "{name} waits for {on}, which is not there");
            match how["condition"].as_str().unwrap() {
                "service_healthy" => assert!(target["healthcheck"].is_object(), "{on} has no health check"),
                "service_completed_successfully" => {
                    assert_eq!(target["restart"], "no", "{on} never completes")
                }
                other => panic!("{name}: {other}"),
            }
        }
    }
    assert!(compose["services"]["postgres"]["image"].as_str().unwrap().starts_with("postgres:17"));
    assert!(compose["services"]["rabbitmq"]["image"].as_str().unwrap().starts_with("rabbitmq:4"));
}

#[test]
fn every_path_variable_and_program_that_the_compose_file_names_is_there() {
    let compose = compose();
    let declared: BTreeSet<&str> =
        compose["volumes"].as_object().unwrap().keys().map(String::as_str).collect();
    for (name, service) in compose["services"].as_object().unwrap() {
        for volume in service["volumes"].as_array().into_iter().flatten() {
            let source = volume.as_str().unwrap().split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(path) => assert!(root().join(path).exists(), "{name}: {path}"),
                None => assert!(declared.contains(source), "{name}: {source}"),
            }
        }
        if service["build"].is_string() {
            let program = service["command"][0].as_str().unwrap();
            crate::support::program(program);
        }
    }
    // Compose would put an empty text where a variable without a default is not set.
    let text = read("docker-compose.yml");
    for part in text.split("${").skip(1) {
        let variable = part.split('}').next().unwrap();
        assert!(variable.contains(":-"), "${{{variable}}} has no default");
    }
}

#[test]
fn the_programs_accept_the_environment_that_the_compose_file_gives_them() {
    let compose = compose();
    let scratch = testbed::Scratch::new("compose").unwrap();
    let file = scratch.path().join("oncely.toml");
    std::fs::copy(root().join("examples/tour/oncely.toml"), &file).unwrap();
    let mut command = std::process::Command::new(crate::support::program("oncely"));
    command.env_clear().env("ONCELY_CONFIG", &file).args(["check", "--json"]);
    for (name, value) in compose["services"]["worker"]["environment"].as_object().unwrap() {
        let value = value.as_str().unwrap();
        let plain = value.split("${").map(|part| match part.split_once(":-") {
            Some((_, rest)) => rest.replacen('}', "", 1),
            None => part.to_owned(),
        });
        // Nobody listens there; the names of the Compose network mean nothing here.
        let plain = plain
            .collect::<String>()
            .replace("@postgres:5432", "@127.0.0.1:1")
            .replace("@rabbitmq:5672", "@127.0.0.1:1");
        command.env(name, plain.replace("redis:6379", "127.0.0.1:1"));
    }
    let output = command.output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["problems"], Value::Array(vec![]), "{object}");
    assert_eq!(output.status.code(), Some(3), "valid, and nobody is there");
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
    for needed in
        ["build.rs", "sqlx.toml", "sqlx-data.json", "migrations", "src", "oncely.default.toml", "README.md"]
    {
        assert!(text.contains(needed), "{needed}");
    }
}

#[test]
fn the_dockerfile_builds_with_the_compiler_that_the_project_names() {
    let toolchain = read("rust-toolchain.toml");
    let channel =
        toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    assert!(read("Dockerfile").contains(&format!("FROM rust:{channel}-")), "{channel}");
}

#[test]
fn the_published_package_has_what_its_build_reads_and_no_more() {
    let cargo = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO")).args(arguments).current_dir(root()).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let listed = cargo(&["package", "--package", "oncely", "--list", "--allow-dirty"]);
    let listed: BTreeSet<&str> = listed.lines().collect();
    for needed in
        ["build.rs", "sqlx.toml", "sqlx-data.json", "oncely.default.toml", "README.md", "LICENSE-MIT"]
    {
        assert!(listed.contains(needed), "{needed}");
    }
    for folder in ["src", "migrations"] {
        let in_it = listed.iter().filter(|path| path.starts_with(&format!("{folder}/"))).count();
        assert!(in_it > 10, "{folder}: {in_it}");
    }
    let foreign = ["tests/", "xtask/", "testbed/", "docs/", "deploy/", "browser/", "bench/"];
    let foreign: Vec<_> =
        listed.iter().filter(|path| foreign.iter().any(|folder| path.starts_with(folder))).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    // Whatever a published package needs is published.
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let is_published = package["publish"].is_null();
        assert_eq!(is_published, package["name"] == "oncely", "{}", package["name"]);
        if !is_published {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_for_tests = dependency["kind"] == "dev";
            assert!(is_for_tests || dependency["source"].is_string(), "{}: a path", dependency["name"]);
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
