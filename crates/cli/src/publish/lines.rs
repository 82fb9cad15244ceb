//! A file of messages, read line by line.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;

use super::envelope::{Envelope, MessageDefaults};
use oncely_amqp::{Copy, Publisher};

/// Messages published at the same time.
const BATCH: usize = 500;

/// The messages of a file ("-": standard input), one per line.
pub(crate) struct MessageFile<'a> {
    reader: Box<dyn BufRead>,
    number: usize,
    frame: &'a MessageDefaults,
}

/// A line's message, or the line's error.
pub(crate) struct MessageLine {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) message: Result<Copy, String>,
}

impl<'a> MessageFile<'a> {
    pub(crate) fn open(file: &Path, frame: &'a MessageDefaults) -> anyhow::Result<Self> {
        let reader: Box<dyn BufRead> = match file == Path::new("-") {
            true => Box::new(std::io::stdin().lock()),
            false => {
                let opened = File::open(file).with_context(|| format!("{} can't be read", file.display()))?;
                Box::new(BufReader::new(opened))
            }
        };
        Ok(Self { reader, number: 0, frame })
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
                return Some(Ok(MessageLine { number: self.number, message: message(&line, self.frame) }));
            }
        }
    }
}

/// Publishes the lines of a file; returns how many. Each batch is confirmed before the next is read. Stops at an invalid line or a refused
/// message, and reports how far it came: if the file is published again, the messages that arrived are duplicates.
pub(super) async fn publish(
    file: &Path,
    frame: &MessageDefaults,
    publisher: &Publisher,
) -> anyhow::Result<usize> {
    let mut lines = MessageFile::open(file, frame)?;
    let mut published = 0;
    loop {
        let mut batch = Vec::new();
        let mut end = false;
        let mut wrong = None;
        while batch.len() < BATCH {
            let Some(MessageLine { number, message }) = lines.next().transpose()? else {
                end = true;
                break;
            };
            match message {
                Ok(copy) => batch.push((number, copy)),
                Err(why) => {
                    wrong = Some(format!("line {number}: {why}"));
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
        if let Some(wrong) = wrong {
            anyhow::bail!("{wrong} ({published} messages before it were published)");
        }
        if end {
            return Ok(published);
        }
    }
}

fn message(line: &[u8], frame: &MessageDefaults) -> Result<Copy, String> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        // Without serde's "line 1": only one line is parsed.
        error.to_string().replace(" at line 1 column", ", at byte")
    })?;
    envelope.message(frame)
}
