//! Messages as chance has them.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};

/// Messages as chance has them.
pub(crate) struct Chance(fastrand::Rng);

impl Chance {
    pub(crate) fn new() -> Self {
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn below(&mut self, most: usize) -> usize {
        self.0.usize(..most)
    }

    /// A size: as likely of one order of magnitude as of another.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let bits = self.0.u32(..=most.ilog2());
        self.0.usize(..=most.min(2 << bits))
    }

    /// A short piece of JSON, a value alone or in a container that is whole.
    fn item(&mut self) -> &'static str {
        const ITEMS: [&str; 14] = [
            "0",
            "-1.5e-300",
            "null",
            "true",
            "\"\"",
            "\"\\u0000\"",
            "\"\\ud83d\\ude00\"",
            "\"\u{10ffff}\"",
            "[]",
            "{}",
            "[[]]",
            "{\"a\":{}}",
            "{\"a\":0,\"a\":1}",
            "123456789012345678901234567890",
        ];
        ITEMS[self.0.usize(..ITEMS.len())]
    }

    /// A body of this size or a little more, of one shape.
    pub(crate) fn body(&mut self, size: usize) -> String {
        let mut body = format!("{{\"id\":\"{:x}\"", self.0.u64(..));
        match self.0.u8(..7) {
            // Deep, of mixed brackets.
            0 => {
                let mut ends = Vec::new();
                body.push_str(",\"deep\":");
                while body.len() + ends.len() < size {
                    let (start, end) = if self.0.bool() { ("[", "]") } else { ("{\"a\":", "}") };
                    body.push_str(start);
                    ends.push(end);
                }
                body.push('0');
                body.extend(ends.into_iter().rev());
            }
            // Fields, most of them twice.
            1 | 2 => {
                let names = 1 + self.size(100_000);
                while body.len() < size {
                    let (name, item) = (self.below(names), self.item());
                    body.push_str(&format!(",\"{name:x}\":{item}"));
                }
            }
            3 => {
                body.push_str(",\"items\":[0");
                while body.len() < size {
                    body.push(',');
                    body.push_str(self.item());
                }
                body.push(']');
            }
            // One item again and again: all that a parser allocates for it is the same.
            4 => {
                let item = self.item();
                body.push_str(",\"items\":[0");
                while body.len() < size {
                    body.push(',');
                    body.push_str(item);
                }
                body.push(']');
            }
            5 => {
                let piece = ["x", "\\n", "\\u0041", "\u{e9}", "\\ud83d\\ude00"][self.below(5)];
                body.push_str(&format!(",\"text\":\"{}\"", piece.repeat(size / piece.len())));
            }
            _ => body.push_str(&format!(",\"number\":1{}", "0".repeat(size))),
        }
        body.push('}');
        // Some break off.
        if self.below(8) == 0 {
            let mut end = self.below(body.len());
            while !body.is_char_boundary(end) {
                end -= 1;
            }
            body.truncate(end);
        }
        body
    }

    fn value(&mut self) -> AMQPValue {
        match self.below(6) {
            0 => AMQPValue::Void,
            1 => AMQPValue::Boolean(true),
            2 => AMQPValue::LongLongInt(i64::MIN),
            3 => AMQPValue::Timestamp(u64::MAX),
            4 => AMQPValue::LongString("x".repeat(self.size(2_000)).into()),
            _ => AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Void; self.size(200)])),
        }
    }

    /// Properties with headers of less than a frame of RabbitMQ's: many, or deep.
    pub(super) fn properties(&mut self, key: &str) -> BasicProperties {
        let mut headers = FieldTable::default();
        let mut room = 100_000;
        for number in 0..self.size(8_000) {
            let value = self.value();
            let Some(left) = usize::checked_sub(room, wire_size(&value)) else { break };
            headers.insert(ShortString::from(format!("{number:x}")), value);
            room = left;
        }
        for _ in 0..self.size(200) {
            let mut outer = FieldTable::default();
            outer.insert("in".into(), AMQPValue::FieldTable(headers));
            headers = outer;
        }
        headers.insert("x-tenant-id".into(), AMQPValue::LongString("acme".into()));
        BasicProperties::default().with_message_id(key.into()).with_headers(headers)
    }
}

/// More than the bytes of a header in a frame.
fn wire_size(value: &AMQPValue) -> usize {
    16 + match value {
        AMQPValue::LongString(text) => text.as_bytes().len(),
        AMQPValue::FieldArray(array) => array.as_slice().len(),
        _ => 0,
    }
}
