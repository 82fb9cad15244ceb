//! `dashboards/oncely.json`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Query, between, read};

const FILE: &str = "dashboards/oncely.json";

fn board() -> Value {
    serde_json::from_str(&read(FILE)).unwrap()
}

fn panels(board: &Value) -> &[Value] {
    board["panels"].as_array().unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} is no text in {value}"))
}

/// An expression as Prometheus gets it from Grafana, with everything chosen.
fn filled_in(expression: &str) -> String {
    let filled =
        expression.replace("$__rate_interval", "1m").replace("$consumer", ".*").replace("$queue", ".*");
    assert!(!filled.contains('$'), "a variable that is not there: {filled}");
    filled
}

/// The board's expressions: of panels, and of its variables.
pub(super) fn queries() -> Vec<Query> {
    let board = board();
    let mut queries = Vec::new();
    for panel in panels(&board) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            queries.push(Query {
                place: format!("{FILE}: {}", text(panel, "title")),
                expression: filled_in(text(target, "expr")),
                shown: between(legend, "{{", "}}").into_iter().map(str::to_owned).collect(),
            });
        }
    }
    for variable in board["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let values = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
        let (selector, label) = values.and_then(|values| values.rsplit_once(", ")).expect(query);
        queries.push(Query {
            place: format!("{FILE}: variable {}", text(variable, "name")),
            expression: filled_in(selector),
            shown: [label.to_owned()].into(),
        });
    }
    assert!(queries.len() > 50, "{}", queries.len());
    queries
}

#[test]
fn the_board_is_whole_and_every_panel_says_what_to_do() {
    let board = board();
    let rows: Vec<&str> =
        panels(&board).iter().filter(|panel| panel["type"] == "row").map(|row| text(row, "title")).collect();
    assert_eq!(
        rows,
        ["Verdict", "Consumers", "Failures", "Mirror & relay", "Database", "Processes", "Gateway"]
    );
    let mut titles: BTreeSet<&str> = BTreeSet::new();
    let mut taken: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    for (index, panel) in panels(&board).iter().enumerate() {
        let title = text(panel, "title");
        assert!(titles.insert(title), "two panels are called {title}");
        assert_eq!(panel["id"], index + 1, "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + w <= 24, "{title} is wider than the board");
        for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            if let Some(other) = taken.insert(place, title) {
                panic!("{title} and {other} overlap");
            }
        }
        if panel["type"] != "row" {
            assert!(text(panel, "description").len() > 50, "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    for panel in panels(&board) {
        for named in between(panel["description"].as_str().unwrap_or_default(), "“", "”") {
            assert!(titles.contains(named) || named == "Operate at 3 a.m.", "there is no panel {named}");
        }
    }
    let variables = board["templating"]["list"].as_array().unwrap();
    let variables: Vec<&str> = variables.iter().map(|variable| text(variable, "name")).collect();
    assert_eq!(variables, ["datasource", "consumer", "queue"]);
}
