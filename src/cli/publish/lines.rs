//! A file of messages, from its first line to its last.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;

use super::envelope::{Envelope, Frame};
use crate::amqp::{Copy, Publisher};

/// Messages on their way at the same time.
const BATCH: usize = 500;

/// The messages of a file ("-": standard input), a line each.
pub(in crate::cli) struct Lines<'a> {
    reader: Box<dyn BufRead>,
    number: usize,
    frame: &'a Frame,
}

/// A line's message, or what is wrong with the line.
pub(in crate::cli) struct Line {
    /// Counted from 1.
    pub(in crate::cli) number: usize,
    pub(in crate::cli) message: Result<Copy, String>,
}

impl<'a> Lines<'a> {
    pub(in crate::cli) fn open(file: &Path, frame: &'a Frame) -> anyhow::Result<Self> {
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

/// Empty lines are left out.
impl Iterator for Lines<'_> {
    type Item = std::io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // At LF only: a payload may hold other line breaks.
            let mut line = Vec::new();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => self.number += 1,
                Err(error) => return Some(Err(error)),
            }
            if !line.trim_ascii().is_empty() {
                return Some(Ok(Line { number: self.number, message: message(&line, self.frame) }));
            }
        }
    }
}

/// Publishes the lines of a file; returns how many. Each batch is confirmed before the next is read; where one line is wrong, or one
/// message refused, it stops and says how far it came: published again, what arrived is a duplicate.
pub(super) async fn publish(file: &Path, frame: &Frame, publisher: &Publisher) -> anyhow::Result<usize> {
    let mut lines = Lines::open(file, frame)?;
    let mut published = 0;
    loop {
        let mut batch = Vec::new();
        let mut end = false;
        let mut wrong = None;
        while batch.len() < BATCH {
            let Some(Line { number, message }) = lines.next().transpose()? else {
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

fn message(line: &[u8], frame: &Frame) -> Result<Copy, String> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        // Without serde's "line 1": there is one line.
        error.to_string().replace(" at line 1 column", ", at byte")
    })?;
    envelope.message(frame)
}
