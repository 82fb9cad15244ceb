//! A file of messages, read line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;

use super::envelope::{Envelope, MessageDefaults};
use oncely_amqp::{Copy, Publisher};

/// Messages published at the same time.
const BATCH_MESSAGES: usize = 500;

/// The messages of a file ("-": standard input), one per line.
pub(crate) struct MessageFile<'a> {
    reader: Box<dyn BufRead>,
    number: usize,
    defaults: &'a MessageDefaults,
}

/// A line's message, or the line's error.
pub(crate) struct MessageLine {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) message: Result<Copy, String>,
}

impl<'a> MessageFile<'a> {
    /// Opens a file of messages ("-": standard input).
    pub(crate) fn open(file: &Path, defaults: &'a MessageDefaults) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = match file == Path::new("-") {
            true => Box::new(std::io::stdin().lock()),
            false => {
                let opened = File::open(file).with_context(|| format!("{} can't be read", file.display()))?;
                Box::new(BufReader::new(opened))
            }
        };
        Ok(Self { reader, number: 0, defaults })
    }
}

/// Skips empty lines.
impl Iterator for MessageFile<'_> {
    type Item = std::io::Result<MessageLine>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // Splits at LF only: a payload may hold other line breaks.
            let mut line = Vec::new();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => self.number += 1,
                Err(error) => return Some(Err(error)),
            }
            if !line.trim_ascii().is_empty() {
                return Some(Ok(MessageLine {
                    number: self.number,
                    message: parse_message(&line, self.defaults),
                }));
            }
        }
    }
}

/// Publishes the lines of a file; returns how many. Each batch is confirmed before the next is read. Stops at an invalid line or a refused
/// message, and reports how far it came: if the file is published again, the messages that arrived are duplicates.
pub(super) async fn publish_lines(
    file: &Path,
    defaults: &MessageDefaults,
    publisher: &Publisher,
) -> anyhow::Result<usize> {
    let mut lines = MessageFile::open(file, defaults)?;
    let mut published = 0;
    loop {
        let mut batch = Vec::new();
        let mut is_end = false;
        let mut line_error = None;
        while batch.len() < BATCH_MESSAGES {
            let Some(MessageLine { number, message }) = lines.next().transpose()? else {
                is_end = true;
                break;
            };
            match message {
                Ok(copy) => batch.push((number, copy)),
                Err(why) => {
                    line_error = Some(format!("line {number}: {why}"));
                    break;
                }
            }
        }
        let (numbers, copies): (Vec<usize>, Vec<Copy>) = batch.into_iter().unzip();
        for (number, result) in numbers.into_iter().zip(publisher.publish(&copies).await) {
            result.with_context(|| {
                format!("line {number} was not published, {published} messages before it were")
            })?;
            published += 1;
        }
        if let Some(line_error) = line_error {
            anyhow::bail!("{line_error} ({published} messages before it were published)");
        }
        if is_end {
            return Ok(published);
        }
    }
}

/// Parses a line; an error names the byte.
fn parse_message(line: &[u8], defaults: &MessageDefaults) -> Result<Copy, String> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        // Without serde's "line 1": only one line is parsed.
        error.to_string().replace(" at line 1 column", ", at byte")
    })?;
    envelope.into_message(defaults)
}
