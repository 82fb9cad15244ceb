//! `oncely failed list`.

use std::path::Path;

use clap::Args;
use uuid::Uuid;

use super::super::output::{List, Output, Row, Times};
use super::{LetterFilterArguments, SCHEMA, connect_to_read};
use oncely_postgres::{LetterRow, list_letters};

#[derive(Debug, Args)]
pub(crate) struct LetterListArguments {
    /// Ids of dead letters
    ids: Vec<Uuid>,
    #[command(flatten)]
    selection: LetterFilterArguments,
    /// State of the dead letters [default: waiting and requeueing]
    #[arg(long, value_parser = ["waiting", "requeueing", "requeued", "discarded", "any"])]
    state: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, arguments: LetterListArguments, times: Times) -> crate::VerbResult {
    let mut filter = arguments.selection.into_filter(50);
    filter.states = match arguments.state.as_deref() {
        Some("any") => None,
        Some(state) => Some(vec![state.to_owned()]),
        // Letters that are named are listed in any state.
        None if !arguments.ids.is_empty() => None,
        None => Some(vec!["waiting".to_owned(), "requeueing".to_owned()]),
    };
    filter.ids = (!arguments.ids.is_empty()).then_some(arguments.ids);
    let mut connection = connect_to_read(file).await?;
    let rows = list_letters(&mut connection, &filter).await?;
    List { schema: SCHEMA, field: "letters", rows: &rows, none: "no dead letter matches" }
        .print(arguments.output, times)
}

impl Row for LetterRow {
    const SCHEMA: &'static str = "oncely.failed.letter/1";
    const HEADS: &'static [&'static str] =
        &["ID", "TIME", "TENANT", "CONSUMER", "KEY", "REASON", "STATE", "TIMES", "DETAIL"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.id.to_string(),
            times.format_time(self.dead_lettered_at),
            self.tenant.clone(),
            self.consumer.clone(),
            self.key.clone(),
            self.reason.clone(),
            self.state.clone(),
            self.times.to_string(),
            self.detail.clone().unwrap_or_default(),
        ]
    }
}
