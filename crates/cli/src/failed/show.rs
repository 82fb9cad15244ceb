//! `oncely failed show ID`.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use uuid::Uuid;

use super::super::output::{self, Times, bytes, counted, safe};
use super::{SCHEMA, reader};
use oncely_config::Config;
use oncely_core::letter::{Letter, why_not_stored};
use oncely_ops::exit;
use oncely_postgres::{LetterFilter, LetterRow, StoredMessage, letters, messages};

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
const PREVIEW: usize = 4_096;

pub(super) async fn run(file: &Path, arguments: LetterShowArguments, times: Times) -> crate::VerbResult {
    let mut connection = reader(file).await?;
    let filter = LetterFilter { ids: Some(vec![arguments.id]), limit: 1, ..LetterFilter::default() };
    let Some(row) = letters(&mut connection, &filter).await?.into_iter().next() else {
        output::note(&format!("there is no dead letter {}", arguments.id));
        return Ok(ExitCode::from(exit::NO));
    };
    let generation = u32::try_from(row.generation).unwrap_or(0);
    let named = (row.tenant.clone(), Letter { id: row.id, generation });
    let message = messages(&mut connection, &[named]).await?.into_iter().next();
    let mut shown = ShownLetter { row, message, body: None, unreadable: None, has_body: arguments.body };
    if arguments.raw || arguments.body {
        shown.read_body(file)?;
    }
    if arguments.raw {
        return shown.write_raw();
    }
    match arguments.json {
        true => output::print_json(SCHEMA, json!({ "letter": shown.json()? }))?,
        false => output::print(&shown.lines(times).join("\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A letter with the parts that were asked for.
struct ShownLetter {
    row: LetterRow,
    message: Option<StoredMessage>,
    body: Option<Vec<u8>>,
    /// Reason why a stored body can't be read.
    unreadable: Option<String>,
    /// Whether the body was asked for.
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

    fn write_raw(&self) -> crate::VerbResult {
        let Some(body) = &self.body else {
            output::note(&match &self.unreadable {
                Some(error) => format!("the body is {error}"),
                None => format!("the body is not stored: {}", why_not_stored(self.row.omitted.as_deref())),
            });
            return Ok(ExitCode::from(exit::NO));
        };
        std::io::stdout().lock().write_all(body)?;
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> anyhow::Result<Value> {
        let mut letter = serde_json::to_value(&self.row)?;
        let stored = |of: fn(&StoredMessage) -> &Option<String>| {
            self.message.as_ref().and_then(|message| of(message).as_deref()).map(read)
        };
        letter["properties"] = json!(stored(|message| &message.properties));
        letter["headers"] = json!(stored(|message| &message.headers));
        if self.has_body {
            letter["body"] = match self.body.as_deref().map(|body| (body, std::str::from_utf8(body))) {
                Some((_, Ok(text))) => json!(text),
                Some((body, Err(_))) => json!({ "x": hexadecimal(body) }),
                None => Value::Null,
            };
            letter["unreadable"] = json!(self.unreadable);
        }
        Ok(letter)
    }

    fn lines(&self, times: Times) -> Vec<String> {
        let mut lines = describe(&self.row, times);
        if let Some(message) = &self.message {
            lines.extend(fields("properties", message.properties.as_deref()));
            lines.extend(fields("headers", message.headers.as_deref()));
        }
        lines.push(format!("  body       {}", about(&self.row, self.has_body)));
        if let Some(body) = &self.body {
            lines.push(String::new());
            lines.push(preview(body));
        }
        if let Some(error) = &self.unreadable {
            lines.push(format!("             {error}"));
        }
        lines
    }
}

fn describe(row: &LetterRow, times: Times) -> Vec<String> {
    let unknown = |text: &str| if text.is_empty() { "(unknown)".to_owned() } else { safe(text) };
    let mut lines = vec![
        format!("{} · tenant {} · key {}", safe(&row.consumer), unknown(&row.tenant), unknown(&row.key)),
        format!("  id         {}, generation {}", row.id, row.generation),
        format!("  state      {} since {}", row.state, times.show(row.updated_at)),
        format!("  why        {}: {}", safe(&row.reason), safe(row.detail.as_deref().unwrap_or_default())),
        format!("  group      {}", safe(&row.failure_group)),
        format!(
            "  when       {}, attempt {}, worker {}; dead-lettered {}",
            times.show(row.dead_lettered_at),
            row.attempt,
            safe(&row.worker),
            counted(row.times, "time")
        ),
        format!(
            "  where      queue {}, exchange {:?}, routing key {}",
            safe(&row.queue),
            row.exchange,
            safe(&row.routing_key)
        ),
    ];
    if let Some(trace) = &row.trace_id {
        lines.push(format!("  trace      {}", safe(trace)));
    }
    if let Some(at) = row.swept_at {
        lines.push(format!("  swept      {}: no copy is left in the dead-letter queue", times.show(at)));
    }
    lines
}

/// Parses a stored value as JSON if Rust can hold it, otherwise keeps its text: PostgreSQL's JSON has numbers of any size.
fn read(stored: &str) -> Value {
    serde_json::from_str(stored).unwrap_or_else(|_| json!(stored))
}

fn fields(label: &str, stored: Option<&str>) -> Vec<String> {
    let fields = match stored.map(read) {
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
            format!("  {label:<11}{} = {}", safe(name), safe(&value))
        })
        .collect()
}

fn about(row: &LetterRow, shown: bool) -> String {
    let mut size = bytes(row.body_size);
    if let Some(key) = row.encrypted_by.as_deref().filter(|_| row.whole) {
        size.push_str(&format!(", encrypted with key {key:?}"));
    }
    match (row.whole, shown) {
        (false, _) => format!("{size}, not stored: {}", why_not_stored(row.omitted.as_deref())),
        (true, false) => format!("{size}; --body shows it"),
        (true, true) => size,
    }
}

fn preview(body: &[u8]) -> String {
    let shown = &body[..body.len().min(PREVIEW)];
    let mut text = String::from_utf8_lossy(shown).lines().map(safe).collect::<Vec<_>>().join("\n");
    if body.len() > shown.len() {
        text.push_str(&format!(
            "\n… {} more; --raw writes all",
            bytes(i64::try_from(body.len() - shown.len()).unwrap_or(i64::MAX))
        ));
    }
    text
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
