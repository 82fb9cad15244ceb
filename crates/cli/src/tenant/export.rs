//! `oncely tenant export TENANT`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::super::connection::connect;
use super::super::{operator, output};
use oncely_config::Config;
use oncely_core::encryption::Cipher;
use oncely_core::letter::Letter;
use oncely_core::mask::{Masks, Visibility};
use oncely_ops::exit;
use oncely_ops::trail::{TrailQuery, search_trail};
use oncely_postgres::{self as pg, EventFilter, KeyContents, KeyWalk, LetterFilter, Position, TrailFilter};

#[derive(Debug, Args)]
pub(crate) struct TenantExportArguments {
    /// Tenant to export
    pub(super) tenant: String,
    /// Include responses, results of steps, bodies, headers and payloads; recorded
    #[arg(long)]
    reveal: bool,
    /// Reason, recorded with the action
    #[arg(long, requires = "reveal")]
    note: Option<String>,
}

/// Rows per query.
const PAGE_ROWS: i64 = 1_000;
/// Rows per query with messages.
const MESSAGE_ROWS: i64 = 50;

pub(super) async fn run(file: &Path, arguments: TenantExportArguments) -> crate::VerbResult {
    let tenant = arguments.tenant.as_str();
    let (masks, cipher) = match arguments.reveal {
        true => {
            let config = Config::load(file)?;
            let masks =
                Masks::new(&config.console.mask, config.console.reveal_other_bodies).with_whole_texts();
            (Some(masks), config.cipher().cloned())
        }
        false => (None, None),
    };
    let mut connection = connect(file, "oncely tenant export").await?;
    pg::prefer_indexes(&mut connection).await?;
    if arguments.reveal {
        let action = pg::Action {
            tenant,
            verb: "reveal",
            user: &operator::name(),
            filter: &json!({ "what": "tenant", "tenant": tenant }),
            count: 1,
            reason: arguments.note.as_deref(),
        };
        // Before any output.
        pg::record_action(&mut connection, &action).await.context("recording it (role oncely_operator)")?;
    }
    let mut export =
        Export { connection, tenant, masks, cipher, counts: ExportCounts::default(), is_stdout_open: true };
    let exported_at = pg::read_database_time(&mut export.connection).await?;
    export.export_keys().await?;
    export.export_trail(exported_at).await?;
    export.export_letters().await?;
    export.export_events().await?;
    let counts = export.counts;
    export.write_line(
        "export",
        json!({ "tenant": tenant, "exported_at": exported_at, "revealed": arguments.reveal, "counts": counts }),
    )?;
    let total = counts.keys + counts.decisions + counts.letters + counts.events;
    if total == 0 {
        output::print_note("there is nothing of this tenant");
    }
    Ok(if total == 0 { ExitCode::from(exit::NO) } else { ExitCode::SUCCESS })
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct ExportCounts {
    keys: u64,
    decisions: u64,
    letters: u64,
    events: u64,
}

struct Export<'a> {
    connection: PgConnection,
    tenant: &'a str,
    /// Masks of messages; `None` without `--reveal`, which leaves messages out.
    masks: Option<Masks>,
    /// Decrypts stored bodies.
    cipher: Option<Arc<dyn Cipher>>,
    counts: ExportCounts,
    /// Whether stdout is still open.
    is_stdout_open: bool,
}

impl Export<'_> {
    /// Writes a row as a line of JSON; records whether stdout is still open.
    fn write_line(&mut self, kind: &str, value: Value) -> anyhow::Result<()> {
        self.is_stdout_open =
            self.is_stdout_open && output::print_json_line(&format!("oncely.tenant.{kind}/1"), value)?;
        Ok(())
    }

    /// Writes the tenant's keys, page by page.
    async fn export_keys(&mut self) -> anyhow::Result<()> {
        let mut after = None;
        while self.is_stdout_open {
            let walk = KeyWalk::ByIdentity { tenant: self.tenant.to_owned(), consumer: None, after };
            let rows = pg::list_keys(&mut self.connection, &walk, PAGE_ROWS).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some((last.consumer.clone(), last.key.clone()));
            let contents: HashMap<(String, String), KeyContents> = match &self.masks {
                Some(_) => {
                    let names: Vec<(&str, &str)> =
                        rows.iter().map(|row| (row.consumer.as_str(), row.key.as_str())).collect();
                    pg::read_tenant_contents(&mut self.connection, self.tenant, &names).await?
                }
                None => HashMap::new(),
            };
            for row in rows {
                let mut value = serde_json::to_value(&row)?;
                if let Some(masks) = &self.masks {
                    let stored = contents.get(&(row.consumer.clone(), row.key.clone()));
                    let mut contents = stored.cloned().unwrap_or_default();
                    let unreadable =
                        contents.decrypt(self.cipher.as_ref(), self.tenant, &row.consumer, &row.key);
                    let KeyContents { response, steps, http_headers, http_body } = contents;
                    value["unreadable"] = json!(unreadable);
                    value["response"] = json!(response.map(|text| mask_json(masks, &text)));
                    value["steps"] = json!(steps.map(|text| mask_json(masks, &text)));
                    value["http_headers"] = json!(http_headers.map(|text| mask_headers(masks, &text)));
                    value["http_body"] = json!(http_body.map(|body| mask_body(masks, &body)));
                }
                self.counts.keys += 1;
                self.write_line("key", value)?;
            }
        }
        Ok(())
    }

    /// Writes the tenant's decisions, page by page.
    async fn export_trail(&mut self, now: DateTime<Utc>) -> anyhow::Result<()> {
        let mut after: Option<Position> = None;
        while self.is_stdout_open {
            let query = TrailQuery {
                filter: TrailFilter { tenant: Some(self.tenant.to_owned()), ..TrailFilter::default() },
                since: DateTime::UNIX_EPOCH,
                until: DateTime::<Utc>::MAX_UTC,
                after,
                limit: usize::try_from(PAGE_ROWS)?,
            };
            let trail_page = search_trail(&mut self.connection, now, &query, None).await?;
            let is_over = trail_page.is_complete(&query);
            after = trail_page.rows.last().map(|(position, _)| position.clone());
            for (_, row) in trail_page.rows {
                self.counts.decisions += 1;
                self.write_line("decision", serde_json::to_value(&row)?)?;
            }
            if is_over || after.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Writes the tenant's dead letters, with their messages.
    async fn export_letters(&mut self) -> anyhow::Result<()> {
        let mut before = None;
        while self.is_stdout_open {
            let filter = LetterFilter {
                tenant: Some(self.tenant.to_owned()),
                before,
                limit: MESSAGE_ROWS,
                ..LetterFilter::default()
            };
            let rows = pg::list_letters(&mut self.connection, &filter).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            before = Some((last.dead_lettered_at, last.id));
            let messages = match &self.masks {
                Some(_) => {
                    let letters = rows.iter().map(|row| {
                        let generation = u32::try_from(row.generation).unwrap_or(0);
                        (row.tenant.clone(), Letter { id: row.id, generation })
                    });
                    pg::read_messages(&mut self.connection, &letters.collect::<Vec<_>>()).await?
                }
                None => Vec::new(),
            };
            for row in rows {
                let mut value = serde_json::to_value(&row)?;
                if let Some(masks) = &self.masks {
                    let message = messages.iter().find(|message| message.id == row.id);
                    let json_of = |text: Option<&String>| text.map(|text| mask_json(masks, text));
                    value["properties"] = json!(json_of(message.and_then(|m| m.properties.as_ref())));
                    value["headers"] = json!(json_of(message.and_then(|m| m.headers.as_ref())));
                    let body = message.map(|message| message.body(self.cipher.as_ref())).transpose();
                    let (body, unreadable) = match body {
                        Ok(body) => (body.flatten(), None),
                        Err(error) => (None, Some(error.to_string())),
                    };
                    value["body"] = json!(body.map(|body| mask_body(masks, &body)));
                    value["unreadable"] = json!(unreadable);
                }
                self.counts.letters += 1;
                self.write_line("letter", value)?;
            }
        }
        Ok(())
    }

    /// Writes the tenant's waiting and parked events.
    async fn export_events(&mut self) -> anyhow::Result<()> {
        let mut behind = Uuid::nil();
        while self.is_stdout_open {
            let filter = EventFilter {
                tenant: Some(self.tenant.to_owned()),
                behind: Some(behind),
                limit: MESSAGE_ROWS,
                ..EventFilter::default()
            };
            let rows = pg::list_events(&mut self.connection, &filter).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            behind = last.id;
            let ids: Vec<_> = rows.iter().map(|row| row.id).collect();
            let payloads = match &self.masks {
                Some(_) => pg::read_tenant_payloads(&mut self.connection, self.tenant, &ids).await?,
                None => Vec::new(),
            };
            for row in rows {
                let mut value = serde_json::to_value(&row)?;
                if let Some(masks) = &self.masks {
                    let message = payloads.iter().find(|message| message.id == row.id);
                    let headers = message.and_then(|message| message.headers.as_deref());
                    value["headers"] = json!(headers.map(|text| mask_json(masks, text)));
                    value["payload"] = json!(message.map(|message| mask_body(masks, &message.payload)));
                }
                self.counts.events += 1;
                self.write_line("event", value)?;
            }
        }
        Ok(())
    }
}

/// Masks the configured fields of a JSON text; without masks the text is unchanged.
fn mask_json(masks: &Masks, text: &str) -> Value {
    match masks.is_empty() {
        true => Value::from(text),
        false => Value::from(masks.mask_text(text, Visibility::Revealed)),
    }
}

/// Masks headers that are stored as pairs: by their names, so that a mask finds the header that it names.
fn mask_headers(masks: &Masks, pairs: &str) -> Value {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    match serde_json::from_str::<Vec<(String, String)>>(pairs) {
        Ok(pairs) => {
            for (name, value) in pairs {
                by_name.entry(name).or_default().push(value);
            }
            mask_json(masks, &json!(by_name).to_string())
        }
        // Not in the format of stored pairs.
        Err(_) => mask_json(masks, pairs),
    }
}

/// Masks a body: a text like JSON; without masks, other bytes become hexadecimal digits.
fn mask_body(masks: &Masks, body: &[u8]) -> Value {
    match std::str::from_utf8(body) {
        Ok(text) => mask_json(masks, text),
        Err(_) if masks.is_empty() => {
            json!({ "x": body.iter().map(|byte| format!("{byte:02x}")).collect::<String>() })
        }
        Err(_) => Value::from(masks.mask_body(body, Visibility::Revealed)),
    }
}
