//! `deploy/`: units and manifests that no compiler reads, against what systemd and Kubernetes publish of them and against what is in this
//! repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use oncely::config::Config;
use serde_json::{Value, json};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

fn files(name: &str) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder(name)).unwrap();
    let mut files: Vec<(String, String)> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// What a command line does, as the program itself reads it.
fn is_understood(words: &[&str]) {
    let read = oncely_cli::command().try_get_matches_from(words);
    assert!(read.is_ok(), "{words:?}: {}", read.unwrap_err());
}

#[tokio::test]
async fn systemd_understands_each_unit_and_finds_it_shut_in() {
    let analyze = tokio::task::spawn_blocking(testbed::systemd_analyze).await.unwrap().unwrap();
    let scratch = testbed::Scratch::new("units").unwrap();
    let stand_in = scratch.path().join("oncely");
    std::os::unix::fs::symlink("/bin/true", &stand_in).unwrap();
    let run = |arguments: &[&str]| {
        let output = Command::new(&analyze).args(arguments).current_dir(scratch.path()).output().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), text)
    };
    for (name, unit) in files("systemd") {
        let lines: Vec<&str> = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
        assert!(!lines.is_empty(), "{name}");
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[0], "/usr/bin/oncely", "{name}");
            is_understood(&words);
        }
        // Its program is not installed here.
        let unit = unit.replace("/usr/bin/oncely", &stand_in.display().to_string());
        std::fs::write(scratch.path().join(&name), &unit).unwrap();
        let (fine, said) = run(&["verify", "--man=no", &format!("./{name}")]);
        assert!(fine && said.is_empty(), "{name}: {said}");
        // On a scale of ten, whose upper end is a service without any restriction.
        let threshold = if name == "oncely-migrate.service" { "40" } else { "15" };
        let unit = format!("./{name}");
        let (fine, said) = run(&["security", "--offline=true", &format!("--threshold={threshold}"), &unit]);
        assert!(fine, "{name}: {said}");
    }
    // Both can fail.
    std::fs::write(
        scratch.path().join("bad.service"),
        format!("[Service]\nType=notfy\nExecStart={}\n", stand_in.display()),
    )
    .unwrap();
    let (_, said) = run(&["verify", "--man=no", "./bad.service"]);
    assert!(said.contains("notfy"), "{said}");
    assert!(!run(&["security", "--offline=true", "--threshold=15", "./bad.service"]).0);
}

/// All objects of the manifests, with the files that they are in.
fn objects() -> Vec<(String, Value)> {
    let mut objects = Vec::new();
    for (name, text) in files("kubernetes") {
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let mut value: serde_yaml_ng::Value =
                serde::Deserialize::deserialize(document).unwrap_or_else(|error| panic!("{name}: {error}"));
            value.apply_merge().unwrap();
            objects.push((name.clone(), serde_json::to_value(value).unwrap()));
        }
    }
    objects
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[test]
fn each_manifest_follows_what_kubernetes_publishes() {
    let published: Value = serde_json::from_str(include_str!("../data/kubernetes-1.31.json")).unwrap();
    let validator = |kind: &str, version: &str| {
        let group = match version {
            "v1" => "core.v1",
            "apps/v1" => "apps.v1",
            "batch/v1" => "batch.v1",
            "policy/v1" => "policy.v1",
            other => panic!("{other}: nothing is known of it"),
        };
        let mut schema = published.clone();
        schema["$ref"] = json!(format!("#/$defs/io.k8s.api.{group}.{kind}"));
        jsonschema::validator_for(&schema).unwrap()
    };
    let mut seen = BTreeSet::new();
    for (file, object) in objects() {
        let (kind, version) = (text(&object, "/kind"), text(&object, "/apiVersion"));
        // Of others than Kubernetes.
        if version.contains("keda.sh") || version.contains("kustomize") {
            continue;
        }
        let validator = validator(kind, version);
        let errors: Vec<String> = validator
            .iter_errors(&object)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert_eq!(errors, Vec::<String>::new(), "{file}");
        if kind == "Deployment" {
            let mut broken = object.clone();
            broken["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = json!({});
            assert!(!validator.is_valid(&broken), "the check can fail");
        }
        seen.insert(kind.to_owned());
    }
    let all = ["ConfigMap", "Deployment", "Job", "PodDisruptionBudget", "Secret", "Service"];
    assert_eq!(seen, all.map(str::to_owned).into());
}

/// Where the container of a deployment listens.
fn ports(objects: &[(String, Value)], deployment: &str) -> Vec<u64> {
    let is_meant = |object: &&(String, Value)| {
        object.1["kind"] == "Deployment" && object.1["metadata"]["name"] == deployment
    };
    let (_, object) = objects.iter().find(is_meant).unwrap();
    let ports = object["spec"]["template"]["spec"]["containers"][0]["ports"].as_array().unwrap();
    ports.iter().map(|port| port["containerPort"].as_u64().unwrap()).collect()
}

#[test]
fn what_manifests_name_is_there_and_shut_in() {
    let objects = objects();
    let names = |kind: &str| -> BTreeSet<String> {
        let own = objects.iter().filter(|(_, object)| object["kind"] == kind);
        own.map(|(_, object)| text(object, "/metadata/name").to_owned()).collect()
    };
    let (secrets, configs, deployments) = (names("Secret"), names("ConfigMap"), names("Deployment"));
    let labels: BTreeMap<String, Value> = objects
        .iter()
        .filter(|(_, object)| object["kind"] == "Deployment")
        .map(|(_, object)| {
            let labels = object["spec"]["template"]["metadata"]["labels"].clone();
            assert_eq!(object["spec"]["selector"]["matchLabels"], labels);
            (text(object, "/metadata/name").to_owned(), labels)
        })
        .collect();
    let file_names: BTreeSet<String> = files("kubernetes").into_iter().map(|(name, _)| name).collect();
    let image = format!("oncely:{}", env!("CARGO_PKG_VERSION"));
    for (file, object) in &objects {
        match object["kind"].as_str().unwrap() {
            "Kustomization" => {
                for resource in object["resources"].as_array().unwrap() {
                    assert!(file_names.contains(resource.as_str().unwrap()), "{resource}");
                }
                assert_eq!(object["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
            }
            "PodDisruptionBudget" => {
                let selector = &object["spec"]["selector"]["matchLabels"];
                assert!(labels.values().any(|labels| labels == selector), "{file}: {selector}");
            }
            "Service" => {
                let selector = &object["spec"]["selector"];
                assert!(labels.values().any(|labels| labels == selector), "{file}: {selector}");
            }
            "ScaledObject" => {
                let name = text(object, "/spec/scaleTargetRef/name");
                assert!(deployments.contains(name), "{name}");
                assert_eq!(object["spec"]["triggers"][0]["metadata"]["queueName"], "payments");
            }
            "TriggerAuthentication" => {
                assert!(secrets.contains(text(object, "/spec/secretTargetRef/0/name")));
            }
            "ConfigMap" => {
                let config = Config::parse(&format!(
                    "[postgres]\nurl = \"postgres://localhost/d\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n{}",
                    text(object, "/data/oncely.toml")
                ));
                let config = config.unwrap_or_else(|problems| panic!("{problems}"));
                let queues: Vec<&str> = config
                    .consumers
                    .iter()
                    .flat_map(|consumer| &consumer.queues)
                    .map(String::as_str)
                    .collect();
                assert_eq!(queues, ["payments"]);
                let gateway = &config.gateway;
                assert!(gateway.upstream.is_some() && gateway.principal.is_some());
                let listening = [gateway.listen.port(), gateway.metrics.unwrap().port()];
                assert_eq!(listening.map(u64::from).as_slice(), ports(&objects, "oncely-gateway"), "{file}");
            }
            "Deployment" | "Job" => {
                let pod = &object["spec"]["template"]["spec"];
                assert_eq!(pod["automountServiceAccountToken"], false, "{file}");
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{file}");
                let volumes: BTreeSet<&str> =
                    pod["volumes"].as_array().unwrap().iter().map(|volume| text(volume, "/name")).collect();
                for volume in pod["volumes"].as_array().unwrap() {
                    let config = volume.pointer("/configMap/name").and_then(Value::as_str);
                    let secret = volume.pointer("/secret/secretName").and_then(Value::as_str);
                    assert!(
                        config.is_some_and(|name| configs.contains(name))
                            || secret.is_some_and(|name| secrets.contains(name)),
                        "{volume}"
                    );
                }
                let containers = pod["containers"].as_array().unwrap();
                let all = containers.iter().chain(pod["initContainers"].as_array().into_iter().flatten());
                for container in all {
                    assert_eq!(container["image"], image.as_str(), "{file}");
                    let words: Vec<&str> = container["args"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|word| word.as_str().unwrap())
                        .collect();
                    is_understood(&words);
                    let context = &container["securityContext"];
                    assert_eq!(context["readOnlyRootFilesystem"], true, "{file}");
                    assert_eq!(context["allowPrivilegeEscalation"], false, "{file}");
                    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{file}");
                    for mount in container["volumeMounts"].as_array().unwrap() {
                        assert!(volumes.contains(text(mount, "/name")), "{mount}");
                    }
                    for from in container["envFrom"].as_array().into_iter().flatten() {
                        assert!(secrets.contains(text(from, "/secretRef/name")), "{from}");
                    }
                    // What a probe or a service asks for by name is there.
                    let named: Vec<&str> = container["ports"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .map(|port| text(port, "/name"))
                        .collect();
                    for probe in ["livenessProbe", "readinessProbe"] {
                        for way in ["httpGet", "tcpSocket"] {
                            if let Some(port) = container[probe][way]["port"].as_str() {
                                assert!(named.contains(&port), "{file}: {probe}: {port}");
                            }
                        }
                    }
                    for (probe, path) in [("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
                        if let Some(said) = container[probe]["httpGet"]["path"].as_str() {
                            assert_eq!(said, path, "{file}");
                        }
                    }
                }
            }
            "Secret" => {}
            other => panic!("{file}: {other}"),
        }
    }
}
