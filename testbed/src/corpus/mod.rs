//! The corpus of bad messages: a file that says what is published and what must become of it. How it is written stands at
//! its own top.

mod case;
mod notation;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use anyhow::{Context as _, ensure};

pub use case::{Case, Payload, Posting, as_text};
use toml::{Table, Value};

/// All cases, and the consumers that they are for.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// By name.
    pub consumers: BTreeMap<String, CorpusConsumer>,
    /// In the order of the file.
    pub cases: Vec<Case>,
}

/// A consumer, and the good message that its cases are changes of.
#[derive(Clone, Debug)]
pub struct CorpusConsumer {
    /// Lines of its configuration.
    pub settings: String,
    /// It can have many different good messages.
    pub crowd: bool,
    good: Table,
}

impl CorpusConsumer {
    /// A good message with this key.
    pub fn good(&self, consumer: &str, key: &str) -> anyhow::Result<Posting> {
        case::posting(consumer, key, key, &self.good, &Table::new())
    }
}

impl Corpus {
    /// Reads the file; what is expected is what a broker of this version (such as 4.0.5) has to do with it.
    pub fn load(path: &Path, rabbitmq: &str) -> anyhow::Result<Self> {
        let major = rabbitmq.split('.').next().and_then(|major| major.parse::<u32>().ok());
        let is_4 = major.with_context(|| format!("{rabbitmq} is no version"))? >= 4;
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let file: Table = toml::from_str(&text)?;
        let consumers = tables(&file, "consumers")?
            .into_iter()
            .map(|(name, table)| {
                let settings = text_of(table, "settings")?;
                let good = table.get("good").and_then(Value::as_table).context("good is missing")?.clone();
                let crowd = table.get("crowd").and_then(Value::as_bool).unwrap_or(true);
                Ok((name.clone(), CorpusConsumer { settings, crowd, good }))
            })
            .collect::<anyhow::Result<BTreeMap<_, _>>>()?;
        let mut cases = Vec::new();
        for group in list(&file, "groups")? {
            let (part, consumer) = (text_of(group, "part")?, text_of(group, "consumer")?);
            ensure!(consumers.contains_key(&consumer), "no consumer {consumer}");
            for table in list(group, "cases")? {
                let name = text_of(table, "name")?;
                let place = format!("the case {name:?}");
                let mut table = table.clone();
                if let Some(on_4) = table.remove("on_4")
                    && is_4
                {
                    table.extend(on_4.as_table().context("on_4 is a table")?.clone());
                }
                let mut case = Case::new(&part, &consumer, name, &table, &consumers).context(place)?;
                if is_4 {
                    case.keep_first_headers();
                }
                cases.push(case);
            }
        }
        let mut seen = HashSet::new();
        for case in &cases {
            let key = (case.message.consumer.clone(), case.message.routing_key_seen());
            ensure!(seen.insert(key), "{:?}: another case has its routing key", case.name);
        }
        Ok(Self { consumers, cases })
    }
}

fn tables<'a>(table: &'a Table, name: &str) -> anyhow::Result<Vec<(&'a String, &'a Table)>> {
    let inner = table.get(name).and_then(Value::as_table).with_context(|| format!("no {name}"))?;
    inner.iter().map(|(name, value)| Ok((name, value.as_table().context("not a table")?))).collect()
}

fn list<'a>(table: &'a Table, name: &str) -> anyhow::Result<Vec<&'a Table>> {
    let values = table.get(name).and_then(Value::as_array).with_context(|| format!("no {name}"))?;
    values.iter().map(|value| value.as_table().context("not a table")).collect()
}

fn text_of(table: &Table, name: &str) -> anyhow::Result<String> {
    Ok(table.get(name).and_then(Value::as_str).with_context(|| format!("no {name}"))?.to_owned())
}
