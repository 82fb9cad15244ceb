//! A file of keys, line by line: CSV with column names in its first line, or JSON Lines.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde::Deserialize;

use oncely_core::identity::IdentityPart;
use oncely_postgres::Seed;

/// A line's key, or the line's error.
#[derive(Debug)]
pub(super) struct SeedLine {
    /// Counted from 1.
    pub(super) number: u64,
    pub(super) seed: Result<Seed, String>,
}

/// The lines of a file.
pub(super) struct SeedFile {
    format: SeedFormat,
    /// The tenant of the keys, if no line has one.
    tenant: Option<IdentityPart>,
}

enum SeedFormat {
    Json { reader: Box<dyn BufRead>, number: u64 },
    Csv { reader: Box<csv::Reader<Box<dyn BufRead>>>, columns: Vec<SeedColumn> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeedColumn {
    Tenant,
    Key,
    CompletedAt,
}

impl SeedColumn {
    const ALL: [(&'static str, Self); 3] =
        [("tenant", Self::Tenant), ("key", Self::Key), ("completed_at", Self::CompletedAt)];
}

/// A key as a line of JSON.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeedObject {
    tenant: Option<TextOrNumber>,
    key: Option<TextOrNumber>,
    completed_at: Option<String>,
}

/// A tenant or a key in JSON: a string, or an integer, which stands for its decimal digits, as in a message.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "must be a string or an integer")]
enum TextOrNumber {
    String(String),
    Signed(i64),
    Unsigned(u64),
}

impl TextOrNumber {
    fn into_string(self) -> String {
        match self {
            Self::String(text) => text,
            Self::Signed(number) => number.to_string(),
            Self::Unsigned(number) => number.to_string(),
        }
    }
}

/// The fields of a line.
#[derive(Debug, Default)]
struct SeedFields {
    tenant: Option<String>,
    key: Option<String>,
    completed_at: Option<String>,
}

impl SeedFile {
    /// Opens a file ("-": standard input). Its first character shows its format.
    pub(super) fn open(file: &Path, tenant: Option<IdentityPart>) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = match file == Path::new("-") {
            true => Box::new(std::io::stdin().lock()),
            false => {
                let opened = File::open(file).with_context(|| format!("{} can't be read", file.display()))?;
                Box::new(BufReader::with_capacity(1 << 16, opened))
            }
        };
        Self::from_reader(reader, tenant)
    }

    /// Detects the format by the first character, and reads the head of CSV.
    fn from_reader(mut reader: Box<dyn BufRead>, tenant: Option<IdentityPart>) -> anyhow::Result<Self> {
        let start = reader.fill_buf()?;
        let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
        let format = match start.trim_ascii_start().first() {
            Some(b'{') => SeedFormat::Json { reader, number: 0 },
            _ => {
                let mut reader =
                    csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(reader);
                let columns = read_columns(&mut reader, tenant.is_some())?;
                SeedFormat::Csv { reader: Box::new(reader), columns }
            }
        };
        Ok(Self { format, tenant })
    }
}

/// Reads and validates the column names in the first line. The tenant is a column, unless --tenant gives it.
fn read_columns(
    reader: &mut csv::Reader<Box<dyn BufRead>>,
    tenant_is_given: bool,
) -> anyhow::Result<Vec<SeedColumn>> {
    let advice = match tenant_is_given {
        true => "line 1 must name the columns: key or key,completed_at (their tenant is given by --tenant)",
        false => {
            "line 1 must name the columns: tenant,key or tenant,key,completed_at; or key with --tenant (psql: format csv, header)"
        }
    };
    let mut head = csv::StringRecord::new();
    let has_line = reader.read_record(&mut head).with_context(|| advice)?;
    anyhow::ensure!(has_line, "there is nothing in it: {advice}");
    let mut columns = Vec::with_capacity(head.len());
    for name in &head {
        let column = SeedColumn::ALL.into_iter().find(|(column, _)| *column == name.trim());
        let (name, column) = column.with_context(|| advice)?;
        anyhow::ensure!(!columns.contains(&column), "line 1 names {name} twice");
        columns.push(column);
    }
    anyhow::ensure!(
        columns.contains(&SeedColumn::Key) && columns.contains(&SeedColumn::Tenant) != tenant_is_given,
        advice
    );
    Ok(columns)
}

/// Skips empty lines.
impl Iterator for SeedFile {
    type Item = anyhow::Result<SeedLine>;

    fn next(&mut self) -> Option<Self::Item> {
        let (number, fields) = match &mut self.format {
            SeedFormat::Json { reader, number } => loop {
                let mut line = Vec::new();
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) => return None,
                    Ok(_) => *number += 1,
                    Err(error) => return Some(Err(error.into())),
                }
                let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
                if !line.trim_ascii().is_empty() {
                    break (*number, parse_json(line));
                }
            },
            SeedFormat::Csv { reader, columns } => {
                let mut record = csv::ByteRecord::new();
                match reader.read_byte_record(&mut record) {
                    Ok(false) => return None,
                    Ok(true) => {}
                    Err(error) => return Some(Err(error.into())),
                }
                let number = record.position().map_or(0, csv::Position::line);
                (number, parse_csv(&record, columns))
            }
        };
        let seed = fields.and_then(|fields| parse_seed(fields, self.tenant.as_ref()));
        Some(Ok(SeedLine { number, seed }))
    }
}

/// Parses a line of JSON; an error names the byte and the expected form.
fn parse_json(line: &[u8]) -> Result<SeedFields, String> {
    let object: SeedObject = serde_json::from_slice(line).map_err(|error| {
        let message = error.to_string().replace(" at line 1 column", ", at byte");
        format!("{message}; write {{\"tenant\": …, \"key\": …, \"completed_at\": …}}")
    })?;
    let text = |value: Option<TextOrNumber>| value.map(TextOrNumber::into_string);
    Ok(SeedFields { tenant: text(object.tenant), key: text(object.key), completed_at: object.completed_at })
}

/// Assigns a record's fields to the columns of the file's first line.
fn parse_csv(record: &csv::ByteRecord, columns: &[SeedColumn]) -> Result<SeedFields, String> {
    if record.len() != columns.len() {
        return Err(format!(
            "{} fields, and line 1 names {}; quote what holds a comma",
            record.len(),
            columns.len()
        ));
    }
    let mut fields = SeedFields::default();
    for (field, column) in record.iter().zip(columns) {
        let text = std::str::from_utf8(field).map_err(|_| "not UTF-8: convert the file".to_owned())?;
        // PostgreSQL writes null as an empty field.
        let text = (!text.is_empty()).then(|| text.to_owned());
        match column {
            SeedColumn::Tenant => fields.tenant = text,
            SeedColumn::Key => fields.key = text,
            SeedColumn::CompletedAt => fields.completed_at = text,
        }
    }
    Ok(fields)
}

/// Parses the fields of a line. `fixed`: the tenant of all lines.
fn parse_seed(fields: SeedFields, fixed: Option<&IdentityPart>) -> Result<Seed, String> {
    let part = |what: &str, text: Option<String>| {
        let text = text.ok_or_else(|| format!("{what} is missing: add it, or remove the line"))?;
        IdentityPart::new(text.as_bytes())
            .map_err(|error| format!("the {what} {error}: no message can have it, remove the line"))
    };
    let tenant = match (fields.tenant, fixed) {
        (None, Some(tenant)) => tenant.clone(),
        (Some(_), Some(_)) => return Err("the tenant is given both in the line and by --tenant".to_owned()),
        (tenant, None) => part("tenant", tenant)?,
    };
    let key = part("key", fields.key)?;
    let completed_at = fields.completed_at.map(|text| parse_time(&text)).transpose()?;
    Ok(Seed { tenant, key, completed_at })
}

/// Parses a time in the formats of ISO 8601 and PostgreSQL.
fn parse_time(text: &str) -> Result<DateTime<Utc>, String> {
    let at = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S%.f%#z"))
        .map_err(|_| {
            "completed_at must be a time with its zone, like 2026-11-25T09:30:00Z or 2026-11-25 09:30:00+00"
                .to_owned()
        })?
        .with_timezone(&Utc);
    match at >= DateTime::UNIX_EPOCH {
        true => Ok(at),
        false => Err("completed_at is before 1970".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], tenant: Option<&str>) -> anyhow::Result<Vec<SeedLine>> {
        let tenant = tenant.map(|tenant| IdentityPart::new(tenant.as_bytes()).unwrap());
        SeedFile::from_reader(Box::new(std::io::Cursor::new(text.to_vec())), tenant)?.collect()
    }

    /// Formats each line as "number tenant key time", or "number error".
    fn format_lines(text: &str, tenant: Option<&str>) -> Vec<String> {
        let lines = read(text.as_bytes(), tenant).unwrap().into_iter();
        lines
            .map(|SeedLine { number, seed }| match seed {
                Ok(seed) => {
                    let at = seed.completed_at.map(|at| at.to_rfc3339()).unwrap_or_default();
                    format!("{number} {} {} {at}", seed.tenant, seed.key).trim_end().to_owned()
                }
                Err(why) => format!("{number} {why}"),
            })
            .collect()
    }

    #[test]
    fn csv_and_json_lines_say_the_same() {
        let csv = "\u{feff}key,tenant,completed_at\n\
            order-1,acme,2026-11-25 09:30:00.5+00\n\n\"a,\"\"b\"\"\",acme,\n7,globex,2026-11-25T11:30:00+02:00\n";
        let json = "\u{feff}{\"key\": \"order-1\", \"tenant\": \"acme\", \"completed_at\": \"2026-11-25 09:30:00.5+00\"}\n\n\
            {\"tenant\": \"acme\", \"key\": \"a,\\\"b\\\"\"}\n\
            {\"tenant\": \"globex\", \"key\": 7, \"completed_at\": \"2026-11-25T11:30:00+02:00\"}";
        let without_numbers =
            |lines: Vec<String>| -> Vec<String> { lines.iter().map(|line| line[2..].to_owned()).collect() };
        let expected = [
            "acme order-1 2026-11-25T09:30:00.500+00:00",
            "acme a,\"b\"",
            "globex 7 2026-11-25T09:30:00+00:00",
        ];
        assert_eq!(without_numbers(format_lines(csv, None)), expected);
        assert_eq!(without_numbers(format_lines(json, None)), expected);
        assert_eq!(format_lines("key\na\nb\n", Some("acme")), ["2 acme a", "3 acme b"]);
        assert_eq!(format_lines("{\"key\": \"a\"}", Some("acme")), ["1 acme a"]);
    }

    #[test]
    fn a_bad_line_is_told_by_its_number_and_loses_no_other() {
        let long = "k".repeat(256);
        let csv = format!(
            "tenant,key,completed_at\nacme,good,\nacme,{long},\nacme\n,nobody's,\nacme,,\nacme,late,2026-11-25 09:30:00\nacme,old,1969-01-01T00:00:00Z\nacme,last,\n"
        );
        let lines = format_lines(&csv, None);
        assert_eq!((lines.len(), lines[0].as_str(), lines[7].as_str()), (8, "2 acme good", "9 acme last"));
        for (line, expected) in lines[1..7].iter().zip([
            "3 the key",
            "4 1 fields, and line 1 names 3",
            "5 tenant is missing",
            "6 key is missing",
            "7 completed_at must be a time with its zone",
            "8 completed_at is before 1970",
        ]) {
            assert!(line.starts_with(expected), "{line}");
        }
        let json = "{\"tenant\": \"acme\", \"key\": \"good\"}\nnot json\n{\"tenant\": \"acme\", \"key\": 1.5}\n\
            {\"tenant\": \"acme\", \"key\": \"k\", \"complete_at\": \"x\"}\n{\"tenant\": \"acme\", \"key\": \"\\u0000\"}\n";
        let lines = format_lines(json, None);
        assert_eq!((lines.len(), lines[0].as_str()), (5, "1 acme good"));
        assert!(lines[1..].iter().zip(2..).all(|(line, n)| line.starts_with(&format!("{n} "))), "{lines:?}");
        assert!(lines[2].starts_with("3 must be a string or an integer"), "{lines:?}");
        assert!(lines[3].contains("unknown field `complete_at`"), "{lines:?}");
    }

    #[test]
    fn a_file_that_does_not_say_its_columns_is_refused() {
        for (text, tenant) in [
            ("", None),
            ("acme,order-1\n", None),
            ("tenant,key,key\n", None),
            ("key\n", None),
            ("tenant,key\n", Some("acme")),
            ("tenant,key,amount\n", None),
        ] {
            let error = read(text.as_bytes(), tenant).unwrap_err().to_string();
            assert!(error.contains("line 1"), "{text:?}: {error}");
        }
        let broken = read(b"tenant,key\nacme,\xff\n", None).unwrap();
        assert!(broken[0].seed.as_ref().is_err_and(|why| why.contains("UTF-8")));
    }
}
