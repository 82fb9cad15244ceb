//! `alerts.yml`, `dashboards/oncely.json` and the runbooks: all that they name is there, all that is there is in them, and the rules
//! fire when they must and only then.

mod board;
mod firing;
mod labels;
mod names;
mod rules;
mod runbooks;

use std::path::Path;

/// An expression of board or rules, and where it stands.
struct Query {
    place: String,
    expression: String,
    /// Labels that its texts name.
    shown: labels::Labels,
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What stands between two marks, each time.
fn between<'a>(text: &'a str, opening: &str, closing: &str) -> Vec<&'a str> {
    text.split(opening).skip(1).filter_map(|rest| Some(rest.split_once(closing)?.0)).collect()
}
