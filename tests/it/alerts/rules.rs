//! `alerts.yml` as it is, and as Prometheus's own tool finds it.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Query, between, read};

const FILE: &str = "alerts.yml";
const TESTS: [&str; 2] = ["tests/data/alerts_test.yml", "tests/data/alerts_days_test.yml"];

#[derive(Deserialize)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Rule>,
}

/// An alert.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) alert: String,
    pub(super) expr: String,
    #[serde(rename = "for", default)]
    _for: Option<String>,
    labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// All alerts. Two of one name differ in their severity.
pub(super) fn rules() -> Vec<Rule> {
    let file: File = serde_yaml_ng::from_str(&read(FILE)).unwrap();
    file.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// The rules' expressions.
pub(super) fn queries() -> Vec<Query> {
    rules()
        .into_iter()
        .map(|rule| {
            let texts: String = rule.annotations.values().cloned().collect();
            let templates = between(&texts, "{{", "}}");
            let shown = templates.iter().filter_map(|template| template.trim().strip_prefix("$labels."));
            Query {
                shown: shown.map(str::to_owned).collect(),
                place: format!("{FILE}: {} ({})", rule.alert, rule.labels["severity"]),
                expression: rule.expr,
            }
        })
        .collect()
}

/// The file as it is for somebody in a hurry: every alert fires after a second.
pub(super) fn hurried() -> String {
    let mut file: serde_yaml_ng::Value = serde_yaml_ng::from_str(&read(FILE)).unwrap();
    let rules = file["groups"].as_sequence_mut().unwrap().iter_mut();
    for rule in rules.flat_map(|group| group["rules"].as_sequence_mut().unwrap()) {
        rule["for"] = "1s".into();
    }
    serde_yaml_ng::to_string(&file).unwrap()
}

#[test]
fn every_alert_says_how_urgent_it_is_and_what_to_do() {
    for Rule { alert, labels, annotations, .. } in rules() {
        assert!(alert.starts_with("Oncely"), "{alert}");
        assert_eq!(labels.keys().collect::<Vec<_>>(), ["severity"], "{alert}");
        assert!(["page", "ticket"].contains(&labels["severity"].as_str()), "{alert}: {}", labels["severity"]);
        let keys: Vec<&String> = annotations.keys().collect();
        assert_eq!(keys, ["description", "runbook_url", "summary"], "{alert}");
        assert!(annotations["summary"].len() < 110, "{alert}: one line");
        assert!(annotations["description"].ends_with('.'), "{alert}: sentences");
    }
}

#[derive(Deserialize)]
struct TestFile {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    alert_rule_test: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alertname: String,
    exp_alerts: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    exp_labels: BTreeMap<String, String>,
}

#[tokio::test]
async fn every_alert_is_seen_silent_and_firing_by_promtool() {
    let cases: Vec<Case> = TESTS
        .iter()
        .flat_map(|name| serde_yaml_ng::from_str::<TestFile>(&read(name)).unwrap().tests)
        .flat_map(|test| test.alert_rule_test)
        .collect();
    for Rule { alert, labels, .. } in rules() {
        let of_alert = || cases.iter().filter(|case| case.alertname == alert);
        let severity = &labels["severity"];
        let fires =
            |case: &Case| case.exp_alerts.iter().any(|one| one.exp_labels.get("severity") == Some(severity));
        assert!(of_alert().any(fires), "no test sees {alert} fire with severity {severity}");
        assert!(of_alert().any(|case| !fires(case)), "no test sees {alert} silent with severity {severity}");
    }
    let promtool = testbed::promtool().await.unwrap();
    for arguments in [vec!["check", "rules", FILE], [&["test", "rules"], &TESTS[..]].concat()] {
        let mut command = tokio::process::Command::new(&promtool);
        command.args(&arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = command.output().await.unwrap();
        let (told, failed) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "promtool {arguments:?}:\n{told}{failed}");
    }
}
