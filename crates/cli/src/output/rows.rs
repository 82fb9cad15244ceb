//! Rows in the requested form.

use std::fmt;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::{Times, new_table, print, print_json, print_note, write};
use oncely_core::shown;
use oncely_ops::exit;

/// The output options of every verb that shows rows.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Output {
    /// Form of the rows
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Same as --output json
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Columns, with times as --utc sets
    Table,
    /// One object with all rows
    Json,
    /// One object per line, one for each row
    Ndjson,
    /// A line with the names, and a line for each row
    Csv,
}

impl Output {
    /// Returns the requested form of the rows.
    fn form(self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.output }
    }

    /// Returns whether the output is for programs. Data that is not a row is one object then.
    pub(crate) fn is_for_programs(self) -> bool {
        self.form() != OutputFormat::Table
    }
}

/// A row in a verb's list: its fields are those of the JSON object and the columns of CSV, in their order; a table has those that fit on a
/// screen. The default defines the fields of an empty list, so no row may leave one out.
pub(crate) trait Row: Default + Serialize {
    /// The schema of one row in NDJSON.
    const SCHEMA: &'static str;
    /// The table's headings.
    const HEADS: &'static [&'static str];

    /// Returns the table's cells, unescaped.
    fn cells(&self, times: Times) -> Vec<String>;
}

/// The rows of a result.
pub(crate) struct List<'a, T> {
    /// The schema of the object with all rows.
    pub(crate) schema: &'static str,
    /// That object's field with the rows.
    pub(crate) field: &'static str,
    pub(crate) rows: &'a [T],
    /// The text for an empty list.
    pub(crate) none: &'a str,
}

impl<T: Row> List<'_, T> {
    /// Prints the rows. The exit code shows whether there are any.
    pub(crate) fn print(&self, output: Output, times: Times) -> crate::VerbResult {
        self.print_with(output, times, json!({}))
    }

    /// Prints a page of at most `limit` rows and, if it is full, its last row's position, after which the next page begins.
    pub(crate) fn print_page(
        &self,
        output: Output,
        times: Times,
        limit: i64,
        position: impl FnOnce(&T) -> Value,
    ) -> crate::VerbResult {
        let is_full = i64::try_from(self.rows.len()).is_ok_and(|count| count == limit);
        let last = self.rows.last().filter(|_| is_full);
        let next = last.map(|row| shown::escape_json(&position(row).to_string()).into_owned());
        let code = self.print_with(output, times, json!({ "next": next }))?;
        if let Some(next) = next {
            print_note(&format!("there may be more: --after {}", shown::quote_shell_word(&next)));
        }
        Ok(code)
    }

    /// Prints the rows, with further fields of the object with all rows.
    pub(crate) fn print_with(&self, output: Output, times: Times, more: Value) -> crate::VerbResult {
        match output.form() {
            OutputFormat::Json => {
                let mut object = more;
                if let Value::Object(fields) = &mut object {
                    fields.insert(self.field.to_owned(), serde_json::to_value(self.rows)?);
                }
                print_json(self.schema, object)?;
            }
            OutputFormat::Ndjson if !self.rows.is_empty() => write(&format_ndjson(self.rows)?)?,
            OutputFormat::Csv => write(format_csv(self.rows)?.trim_end_matches('\n'))?,
            OutputFormat::Table if !self.rows.is_empty() => {
                let mut table = new_table(T::HEADS);
                self.rows.iter().for_each(|row| table.add_row(row.cells(times)));
                print(&table.to_string())?;
            }
            OutputFormat::Ndjson | OutputFormat::Table => {}
        }
        if self.rows.is_empty() {
            if output.form() != OutputFormat::Json {
                print_note(self.none);
            }
            return Ok(ExitCode::from(exit::NO));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The fields of a row in their order, which a map would lose.
struct RowFields(Vec<(String, Value)>);

impl RowFields {
    fn from_row(row: &impl Serialize) -> serde_json::Result<Self> {
        let mut fields: Self = serde_json::from_str(&serde_json::to_string(row)?)?;
        fields.0.iter_mut().for_each(|(_, value)| keep_exact(value));
        Ok(fields)
    }
}

impl<'de> Deserialize<'de> for RowFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RowFieldsVisitor;
        impl<'de> Visitor<'de> for RowFieldsVisitor {
            type Value = RowFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RowFields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(RowFields(fields))
            }
        }
        deserializer.deserialize_map(RowFieldsVisitor)
    }
}

impl Serialize for RowFields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// The largest integer that programs with floating-point numbers, such as JavaScript, hold exactly.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// Turns integers beyond 2^53 into texts.
pub(super) fn keep_exact(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let size = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            if size.is_some_and(|size| size > MAX_EXACT_INTEGER) {
                *value = Value::String(number.to_string());
            }
        }
        Value::Array(values) => values.iter_mut().for_each(keep_exact),
        Value::Object(fields) => fields.values_mut().for_each(keep_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Formats each row as a line of JSON, with its schema.
fn format_ndjson<T: Row>(rows: &[T]) -> anyhow::Result<String> {
    let mut lines = Vec::with_capacity(rows.len());
    for row in rows {
        let mut fields = RowFields::from_row(row)?;
        fields.0.insert(0, ("schema".to_owned(), Value::from(T::SCHEMA)));
        lines.push(shown::escape_json(&serde_json::to_string(&fields)?).into_owned());
    }
    Ok(lines.join("\n"))
}

/// Formats the rows as CSV, with the names of the fields in the first line.
fn format_csv<T: Row>(rows: &[T]) -> anyhow::Result<String> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(RowFields::from_row(&T::default())?.0.iter().map(|(name, _)| name))?;
    for row in rows {
        out.write_record(RowFields::from_row(row)?.0.iter().map(|(_, value)| format_cell(value)))?;
    }
    Ok(String::from_utf8(out.into_inner().map_err(|error| error.into_error())?)?)
}

/// Formats a value within a line: arrays and objects as JSON, with hidden characters escaped.
fn format_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => shown::escape_value(text).into_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => shown::escape_json(&value.to_string()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Serialize)]
    struct Example {
        zeal: &'static str,
        count: i64,
        at: Option<chrono::DateTime<chrono::Utc>>,
        names: Vec<&'static str>,
    }

    impl Row for Example {
        const SCHEMA: &'static str = "oncely.example.row/1";
        const HEADS: &'static [&'static str] = &["ZEAL"];

        fn cells(&self, _: Times) -> Vec<String> {
            vec![self.zeal.to_owned()]
        }
    }

    fn example(zeal: &'static str, count: i64) -> Example {
        Example { zeal, count, at: chrono::DateTime::from_timestamp(0, 0), names: vec!["a", "b"] }
    }

    #[test]
    fn csv_is_quoted_where_it_must_be_and_each_row_is_a_line() {
        let rows = [example("a \"b\", c", 1), example("evil\u{1b}[2J\r\nrow", -2)];
        assert_eq!(
            format_csv(&rows).unwrap(),
            "zeal,count,at,names\n\"a \"\"b\"\", c\",1,1970-01-01T00:00:00Z,\"[\"\"a\"\",\"\"b\"\"]\"\n\
             evil\\u{1b}[2J\\u{d}\\u{a}row,-2,1970-01-01T00:00:00Z,\"[\"\"a\"\",\"\"b\"\"]\"\n"
        );
        assert_eq!(format_csv::<Example>(&[]).unwrap(), "zeal,count,at,names\n", "names without rows");
    }

    #[test]
    fn a_line_of_ndjson_is_an_object_with_its_schema_and_fields_in_order() {
        let lines = format_ndjson(&[example("a\n\u{202e}", 1)]).unwrap();
        let wanted = r#"{"schema":"oncely.example.row/1","zeal":"a\n\u202e","count":1,"at":"1970-01-01T00:00:00Z","names":["a","b"]}"#;
        assert_eq!(lines, wanted);
    }

    #[test]
    fn numbers_that_a_float_does_not_hold_are_texts() {
        let mut value =
            json!({ "n": [9_007_199_254_740_992_i64, 9_007_199_254_740_993_i64, i64::MIN, u64::MAX, 1.5] });
        keep_exact(&mut value);
        let wanted = json!([
            9_007_199_254_740_992_i64,
            "9007199254740993",
            "-9223372036854775808",
            "18446744073709551615",
            1.5
        ]);
        assert_eq!(value["n"], wanted);
    }
}
