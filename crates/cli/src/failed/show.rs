//! `oncely failed show ID`.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::output::{self, Times, escape, format_bytes, format_count};
use super::{SCHEMA, connect_to_read};
use oncely_config::Config;
use oncely_core::letter::{Letter, describe_omission};
use oncely_ops::exit;
use oncely_postgres::{LetterFilter, LetterRow, StoredMessage, list_letters, read_messages};

#[derive(Debug, Args)]
#[command(
    after_help = "The body may be sensitive: it is shown only on request. Exit 1: there is no such letter."
)]
pub(crate) struct LetterShowArguments {
    id: Uuid,
    /// Also show the body, with control characters escaped
    #[arg(long)]
    body: bool,
    /// Write only the body to stdout, byte for byte
    #[arg(long, conflicts_with_all = ["body", "json"])]
    raw: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Maximum number of bytes of a body that are shown.
const PREVIEW_BYTES: usize = 4_096;

pub(super) async fn run(file: &Path, arguments: LetterShowArguments, times: Times) -> crate::VerbResult {
    let mut connection = connect_to_read(file).await?;
    let filter = LetterFilter { ids: Some(vec![arguments.id]), limit: 1, ..LetterFilter::default() };
    let Some(row) = list_letters(&mut connection, &filter).await?.into_iter().next() else {
        output::print_note(&format!("there is no dead letter {}", arguments.id));
        return Ok(ExitCode::from(exit::NO));
    };
    let generation = u32::try_from(row.generation).unwrap_or(0);
    let letter = (row.tenant.clone(), Letter { id: row.id, generation });
    let message = read_messages(&mut connection, &[letter]).await?.into_iter().next();
    let mut shown = ShownLetter { row, message, body: None, unreadable: None, has_body: arguments.body };
    if arguments.raw || arguments.body {
        shown.read_body(file)?;
    }
    if arguments.raw {
        return shown.write_raw();
    }
    match arguments.json {
        true => output::print_json(SCHEMA, json!({ "letter": shown.to_json()? }))?,
        false => output::print(&shown.to_lines(times).join("\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A letter with the requested parts.
struct ShownLetter {
    row: LetterRow,
    message: Option<StoredMessage>,
    body: Option<Vec<u8>>,
    /// Reason why a stored body can't be read.
    unreadable: Option<String>,
    /// Whether the body is requested.
    has_body: bool,
}

impl ShownLetter {
    /// Reads the body. Encryption keys are loaded only if they are needed.
    fn read_body(&mut self, file: &Path) -> anyhow::Result<()> {
        let Some(message) = &self.message else { return Ok(()) };
        let cipher = if message.is_encrypted() { Config::load_encryption(file)? } else { None };
        match message.body(cipher.as_ref()) {
            Ok(body) => self.body = body.map(|body| body.to_vec()),
            Err(error) => self.unreadable = Some(error.to_string()),
        }
        Ok(())
    }

    /// Writes only the body to stdout; without a body it prints the reason.
    fn write_raw(&self) -> crate::VerbResult {
        let Some(body) = &self.body else {
            output::print_note(&match &self.unreadable {
                Some(error) => format!("the body is {error}"),
                None => format!("the body is not stored: {}", describe_omission(self.row.omitted.as_deref())),
            });
            return Ok(ExitCode::from(exit::NO));
        };
        std::io::stdout().lock().write_all(body)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Formats the letter as JSON.
    fn to_json(&self) -> anyhow::Result<Value> {
        let mut letter = serde_json::to_value(&self.row)?;
        let stored = |of: fn(&StoredMessage) -> &Option<String>| {
            self.message.as_ref().and_then(|message| of(message).as_deref()).map(parse_stored)
        };
        letter["properties"] = json!(stored(|message| &message.properties));
        letter["headers"] = json!(stored(|message| &message.headers));
        if self.has_body {
            letter["body"] = match self.body.as_deref().map(|body| (body, std::str::from_utf8(body))) {
                Some((_, Ok(text))) => json!(text),
                Some((body, Err(_))) => json!({ "x": to_hexadecimal(body) }),
                None => Value::Null,
            };
            letter["unreadable"] = json!(self.unreadable);
        }
        Ok(letter)
    }

    /// Formats the letter as lines of text.
    fn to_lines(&self, times: Times) -> Vec<String> {
        let mut lines = describe_letter(&self.row, times);
        if let Some(message) = &self.message {
            lines.extend(format_fields("properties", message.properties.as_deref()));
            lines.extend(format_fields("headers", message.headers.as_deref()));
        }
        lines.push(format!("  body       {}", describe_body(&self.row, self.has_body)));
        if let Some(body) = &self.body {
            lines.push(String::new());
            lines.push(format_preview(body));
        }
        if let Some(error) = &self.unreadable {
            lines.push(format!("             {error}"));
        }
        lines
    }
}

/// Formats the facts of a letter as lines of text.
fn describe_letter(row: &LetterRow, times: Times) -> Vec<String> {
    let unknown = |text: &str| if text.is_empty() { "(unknown)".to_owned() } else { escape(text) };
    let mut lines = vec![
        format!("{} · tenant {} · key {}", escape(&row.consumer), unknown(&row.tenant), unknown(&row.key)),
        format!("  id         {}, generation {}", row.id, row.generation),
        format!("  state      {} since {}", row.state, times.format_time(row.updated_at)),
        format!(
            "  why        {}: {}",
            escape(&row.reason),
            escape(row.detail.as_deref().unwrap_or_default())
        ),
        format!("  group      {}", escape(&row.failure_group)),
        format!(
            "  when       {}, attempt {}, worker {}; dead-lettered {}",
            times.format_time(row.dead_lettered_at),
            row.attempt,
            escape(&row.worker),
            format_count(row.times, "time")
        ),
        format!(
            "  where      queue {}, exchange {:?}, routing key {}",
            escape(&row.queue),
            row.exchange,
            escape(&row.routing_key)
        ),
    ];
    if let Some(trace) = &row.trace_id {
        lines.push(format!("  trace      {}", escape(trace)));
    }
    if let Some(at) = row.swept_at {
        lines.push(format!(
            "  swept      {}: no copy is left in the dead-letter queue",
            times.format_time(at)
        ));
    }
    lines
}

/// Parses a stored value as JSON if Rust can hold it, otherwise keeps its text: PostgreSQL's JSON has numbers of any size.
fn parse_stored(stored: &str) -> Value {
    serde_json::from_str(stored).unwrap_or_else(|_| json!(stored))
}

/// Formats the fields of a stored JSON object, a line for each.
fn format_fields(label: &str, stored: Option<&str>) -> Vec<String> {
    let fields = match stored.map(parse_stored) {
        Some(Value::Object(fields)) => fields,
        Some(Value::String(text)) => serde_json::Map::from_iter([("(unreadable)".to_owned(), json!(text))]),
        _ => return Vec::new(),
    };
    fields
        .iter()
        .enumerate()
        .map(|(index, (name, value))| {
            let label = if index == 0 { label } else { "" };
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("  {label:<11}{} = {}", escape(name), escape(&value))
        })
        .collect()
}

/// Describes the size of a body, and how to see it or why it is not stored.
fn describe_body(row: &LetterRow, shown: bool) -> String {
    let mut size = format_bytes(row.body_size);
    if let Some(key) = row.encrypted_by.as_deref().filter(|_| row.whole) {
        size.push_str(&format!(", encrypted with key {key:?}"));
    }
    match (row.whole, shown) {
        (false, _) => format!("{size}, not stored: {}", describe_omission(row.omitted.as_deref())),
        (true, false) => format!("{size}; --body shows it"),
        (true, true) => size,
    }
}

/// Formats the beginning of a body, with control characters escaped.
fn format_preview(body: &[u8]) -> String {
    let shown = &body[..body.len().min(PREVIEW_BYTES)];
    let mut text = String::from_utf8_lossy(shown).lines().map(escape).collect::<Vec<_>>().join("\n");
    if body.len() > shown.len() {
        text.push_str(&format!(
            "\n… {} more; --raw writes all",
            format_bytes(i64::try_from(body.len() - shown.len()).unwrap_or(i64::MAX))
        ));
    }
    text
}

fn to_hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
