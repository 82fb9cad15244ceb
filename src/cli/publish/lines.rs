//! A file of messages, from its first line to its last.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::Context as _;

use super::envelope::{Envelope, Frame};
use crate::amqp::{Copy, Publisher};

/// Messages on their way at the same time.
const BATCH: usize = 500;

/// Publishes the lines of a file ("-": standard input); returns how many. Each batch is confirmed before the next is read; where
/// one line is wrong, or one message refused, it stops and says how far it came: published again, what arrived is a duplicate.
pub(super) async fn publish(file: &Path, frame: &Frame, publisher: &Publisher) -> anyhow::Result<usize> {
    let mut reader: Box<dyn BufRead> = match file == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => {
            let opened = File::open(file).with_context(|| format!("{} can't be read", file.display()))?;
            Box::new(BufReader::new(opened))
        }
    };
    let (mut number, mut published) = (0, 0);
    loop {
        let mut batch = Vec::new();
        let mut end = false;
        let mut wrong = None;
        while batch.len() < BATCH {
            // At LF only: a payload may hold other line breaks.
            let mut line = Vec::new();
            if reader.read_until(b'\n', &mut line)? == 0 {
                end = true;
                break;
            }
            number += 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            match message(&line, frame) {
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
