//! What a case has come to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::case::Case;
use super::measured::Measured;
use super::stats::{median, spread};

/// A figure over the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figure(pub(crate) Vec<f64>);

impl Figure {
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }

    /// Median, least, most.
    fn json(&self) -> Value {
        let (least, most) = spread(&self.0);
        json!({ "median": rounded(self.median()), "min": rounded(least), "max": rounded(most) })
    }
}

/// One side over the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side(pub(crate) Vec<Measured>);

impl Side {
    pub(crate) fn figure(&self, of: impl Fn(&Measured) -> f64) -> Figure {
        Figure(self.0.iter().map(of).collect())
    }

    /// Medians of CPU time in microseconds a message, by process.
    pub(crate) fn cpu(&self) -> BTreeMap<&'static str, f64> {
        let roles = self.0.iter().flat_map(|run| run.cpu.keys().copied());
        roles.map(|role| (role, self.figure(|run| run.cpu_of(role)).median())).collect()
    }

    fn json(&self) -> Value {
        let cpu: Map<String, Value> =
            self.cpu().into_iter().map(|(role, micros)| (role.to_owned(), json!(rounded(micros)))).collect();
        json!({
            "rate": self.figure(|run| run.rate).json(),
            "cpu_us": cpu,
            "cpu_us_total": self.figure(Measured::total_cpu).json(),
            "wal_bytes": self.figure(|run| run.wal).json(),
        })
    }
}

/// A case's result.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) case: Case,
    /// Of each round; the median of these counts.
    pub(crate) ratios: Figure,
    /// The runs compared, where the case has such.
    pub(crate) sides: Option<(Side, Side)>,
    /// What must be so beside the ratio, and is not.
    unmet: Vec<String>,
    /// What else there is to know, for the JSON.
    pub(crate) notes: Map<String, Value>,
}

impl Outcome {
    pub(crate) fn new(case: Case, ratios: Vec<f64>) -> Self {
        Self { case, ratios: Figure(ratios), sides: None, unmet: Vec::new(), notes: Map::new() }
    }

    /// With what was compared: ours, the baseline.
    pub(crate) fn of(mut self, ours: &Side, baseline: &Side) -> Self {
        self.sides = Some((ours.clone(), baseline.clone()));
        self
    }

    /// The target is missed, whatever the ratio, where this is so.
    pub(crate) fn unless(mut self, missed: bool, why: impl FnOnce() -> String) -> Self {
        if missed {
            self.unmet.push(why());
        }
        self
    }

    /// What else misses the target, in words.
    pub(crate) fn unmet(&self) -> &[String] {
        &self.unmet
    }

    pub(crate) fn note(mut self, name: &str, value: Value) -> Self {
        self.notes.insert(name.to_owned(), value);
        self
    }

    pub(crate) fn ratio(&self) -> f64 {
        self.ratios.median()
    }

    pub(crate) fn is_met(&self) -> bool {
        self.unmet.is_empty() && self.case.target.is_met(self.ratio())
    }

    pub(crate) fn json(&self) -> Value {
        use super::case::Target;
        let (least, most) = spread(&self.ratios.0);
        let mut object = Map::new();
        object.insert("name".into(), json!(self.case.name));
        object.insert("ratio".into(), json!(rounded(self.ratio())));
        object.insert("target".into(), json!(self.case.target.value()));
        let kind = match self.case.target {
            Target::AtLeast(_) => json!("at_least"),
            Target::AtMost(_) => json!("at_most"),
            Target::None => Value::Null,
        };
        object.insert("kind".into(), kind);
        object.insert("met".into(), json!(self.case.target.value().map(|_| self.is_met())));
        object.insert("what".into(), json!(self.case.what));
        object.insert("rounds".into(), json!(self.ratios.0.len()));
        object.insert("min".into(), json!(rounded(least)));
        object.insert("max".into(), json!(rounded(most)));
        if !self.unmet.is_empty() {
            object.insert("unmet".into(), json!(self.unmet));
        }
        if let Some((ours, baseline)) = &self.sides {
            object.insert("ours".into(), ours.json());
            object.insert("baseline".into(), baseline.json());
        }
        object.extend(self.notes.clone());
        Value::Object(object)
    }
}

/// To four digits or so.
pub(crate) fn rounded(value: f64) -> f64 {
    if !value.is_finite() {
        return 0.0;
    }
    let digits = if value.abs() >= 100.0 { 10.0 } else { 1_000.0 };
    (value * digits).round() / digits
}
