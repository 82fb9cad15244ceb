//! `oncely failed groups`.

use std::path::Path;

use clap::Args;

use super::super::output::{List, Output, Row, Times};
use super::{LetterFilterArguments, SCHEMA, connect_to_read};
use oncely_postgres::{LetterGroup, list_letter_groups};

#[derive(Debug, Args)]
pub(crate) struct LetterGroupsArguments {
    #[command(flatten)]
    selection: LetterFilterArguments,
    #[command(flatten)]
    output: Output,
}

pub(super) async fn run(file: &Path, arguments: LetterGroupsArguments, times: Times) -> crate::VerbResult {
    let mut connection = connect_to_read(file).await?;
    let groups = list_letter_groups(&mut connection, &arguments.selection.into_filter(50)).await?;
    List { schema: SCHEMA, field: "groups", rows: &groups, none: "no dead letter matches" }
        .print(arguments.output, times)
}

impl Row for LetterGroup {
    const SCHEMA: &'static str = "oncely.failed.group/1";
    const HEADS: &'static [&'static str] =
        &["GROUP", "CONSUMER", "WAITING", "FIRST", "LAST", "REQUEUED", "DETAIL"];

    fn cells(&self, times: Times) -> Vec<String> {
        vec![
            self.failure_group.clone(),
            self.consumer.clone(),
            (self.waiting + self.requeueing).to_string(),
            times.format_time(self.first_at),
            times.format_time(self.last_at),
            describe_requeued(self),
            self.detail.clone().unwrap_or_default(),
        ]
    }
}

/// Describes how many requeued letters came back.
fn describe_requeued(group: &LetterGroup) -> String {
    let decided = group.requeued + group.came_back;
    let mut text = match decided {
        0 => String::new(),
        _ => format!("came back: {} of {decided}", group.came_back),
    };
    if group.requeueing > 0 {
        text.push_str(&format!(" ({} not finished: requeue again)", group.requeueing));
    }
    if group.discarded > 0 {
        text.push_str(&format!(" ({} discarded)", group.discarded));
    }
    text.trim_start().to_owned()
}
