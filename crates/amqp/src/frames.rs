//! Rewrites the broker's frames for the AMQP client's parser, and leaves out bodies that nothing reads.
//!
//! RabbitMQ forwards bytes of publishers. Two things that are valid there end the client's connection or its process, and the message is
//! redelivered on the next one: a short string that is not UTF-8 (the 16 bytes of a UUID in `message_id`), which the parser refuses, and
//! tables nested thousands of levels deep, which it parses by recursion. So bytes that are not UTF-8 become NUL, which is invalid in an
//! identity: the message is refused with a reason (`key_invalid`). A table or an array below [`MAX_DEPTH`] becomes a byte array of its
//! content, which has the same layout on the wire except for its type.
//!
//! A value of one byte on the wire takes a hundred when it is decoded. So headers of more than [`MAX_VALUES`] values become one header,
//! [`own_headers::UNREAD`], with their bytes as its value; a message with it is refused.
//!
//! These rewrites happen in place and keep the length. The client also holds each body as a whole, of any size that the broker allows
//! (512 MiB). So a returned message comes without its body: its name is a header. A delivery with a body over the limit comes
//! without body and properties, but with the body's size in the header [`own_headers::UNREAD_BODY`].

use std::str;
use std::sync::LazyLock;

use uuid::Uuid;

use super::headers::TABLE_VALUES;
use oncely_core::own_headers;

/// Levels of tables and arrays that the client and handlers see as such.
pub(super) const MAX_DEPTH: u32 = 64;

/// Maximum number of values in all headers of a message that the client sees, including those in tables and arrays. Twice the limit of an
/// arriving message ([`super::headers::MAX_VALUES`]), as copies carry more.
pub(super) const MAX_VALUES: usize = 2 * super::headers::MAX_VALUES;

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLimits {
    /// Largest body of a delivery that is passed on.
    pub(super) max_body: u64,
    /// Maximum number of values in headers that are decoded.
    pub(super) max_values: usize,
}

impl FrameLimits {
    /// Limits for messages that a process of Oncely has published: copies have more headers than their originals.
    pub(super) const OWN: Self =
        Self { max_body: u64::MAX, max_values: MAX_VALUES + 2 * own_headers::ALL.len() };

    /// Returns the limits of a subscription.
    pub(super) fn for_subscription(max_body: u64) -> Self {
        Self { max_body, max_values: MAX_VALUES }
    }
}

/// Number of bytes of a frame's type, channel and size.
const FRAME_HEADER_BYTES: usize = 7;
const METHOD: u8 = 1;
const CONTENT_HEADER: u8 = 2;
const BODY_FRAME: u8 = 3;
const HEARTBEAT: u8 = 8;
/// Class and number of the method basic.return.
const RETURN_METHOD: [u8; 4] = [0, 60, 0, 50];
/// Position of the body's size in a content header, behind class and weight.
const BODY_SIZE_RANGE: std::ops::Range<usize> = 4..12;
/// Flags of a property list with headers alone.
const HEADERS_ONLY: [u8; 2] = (0x8000_u16 >> 2).to_be_bytes();
/// A heartbeat.
const HEARTBEAT_FRAME: [u8; FRAME_HEADER_BYTES + 1] = [HEARTBEAT, 0, 0, 0, 0, 0, 0, 0xCE];
/// Largest frame that is buffered. RabbitMQ sends frames of at most 128 KiB by default.
const MAX_FRAME_BYTES: usize = 16 << 20;

/// Bytes on their way to the client, frame by frame.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// End of the bytes that were passed on.
    passed_end: usize,
    /// End of the bytes that are rewritten.
    rewritten_end: usize,
    /// Number of further bytes that need no rewriting: the rest of a body or heartbeat frame.
    unchanged_bytes: usize,
    /// Whether the stream is not AMQP: then it is passed on, and the client reports it.
    is_foreign: bool,
    limits: FrameLimits,
    /// Channels on which a returned message (basic.return) has begun.
    return_channels: Vec<u16>,
    /// Channels with a body to be left out, and its further bytes.
    unread_bodies: Vec<(u16, u64)>,
    /// Number of further bytes of the current frame to be left out.
    dropped_bytes: usize,
}

impl Frames {
    pub(super) fn new(limits: FrameLimits) -> Self {
        Self {
            bytes: Vec::new(),
            passed_end: 0,
            rewritten_end: 0,
            unchanged_bytes: 0,
            is_foreign: false,
            limits,
            return_channels: Vec::new(),
            unread_bodies: Vec::new(),
            dropped_bytes: 0,
        }
    }

    /// Reserves a buffer for `bytes` bytes to read; [`Frames::accept`] sets their number.
    pub(super) fn reserve(&mut self, bytes: usize) -> &mut [u8] {
        if self.passed_end > 0 {
            self.bytes.drain(..self.passed_end);
            self.rewritten_end -= self.passed_end;
            self.passed_end = 0;
        }
        let end = self.bytes.len();
        self.bytes.resize(end + bytes, 0);
        &mut self.bytes[end..]
    }

    /// Accepts `read_bytes` bytes of a buffer that was reserved for `reserved_bytes`, and processes the frames that are complete.
    pub(super) fn accept(&mut self, reserved_bytes: usize, read_bytes: usize) {
        self.bytes.truncate(self.bytes.len() - (reserved_bytes - read_bytes));
        while self.next_frame() {}
    }

    /// Passes all further bytes on unchanged, as the stream has ended.
    pub(super) fn end(&mut self) {
        self.rewritten_end = self.bytes.len();
    }

    /// Passes on rewritten bytes, as many as the buffer takes; returns their number.
    pub(super) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = buffer.len().min(self.rewritten_end - self.passed_end);
        buffer[..count].copy_from_slice(&self.bytes[self.passed_end..self.passed_end + count]);
        self.passed_end += count;
        count
    }

    /// Processes a frame, or the available part of one that needs no rewriting; returns `false` if more bytes are needed.
    fn next_frame(&mut self) -> bool {
        let available = self.bytes.len() - self.rewritten_end;
        if self.is_foreign {
            self.unchanged_bytes = available;
        }
        if self.unchanged_bytes > 0 {
            let count = self.unchanged_bytes.min(available);
            self.rewritten_end += count;
            self.unchanged_bytes -= count;
            return count > 0 && !self.is_foreign;
        }
        if self.dropped_bytes > 0 {
            let count = self.dropped_bytes.min(available);
            self.bytes.drain(self.rewritten_end..self.rewritten_end + count);
            self.dropped_bytes -= count;
            if self.dropped_bytes == 0 {
                // The client ends a connection that is silent, and the broker sends no heartbeats meanwhile.
                self.bytes.splice(self.rewritten_end..self.rewritten_end, HEARTBEAT_FRAME);
                self.rewritten_end += HEARTBEAT_FRAME.len();
            }
            return count > 0;
        }
        let Some(&[kind, high, low, a, b, c, d]) =
            self.bytes[self.rewritten_end..].first_chunk::<FRAME_HEADER_BYTES>()
        else {
            return false;
        };
        let channel = u16::from_be_bytes([high, low]);
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        // Includes the octet at its end.
        let frame_bytes = FRAME_HEADER_BYTES + size + 1;
        match kind {
            METHOD | CONTENT_HEADER if size <= MAX_FRAME_BYTES => {
                if available < frame_bytes {
                    return false;
                }
                let payload = &mut self.bytes
                    [self.rewritten_end + FRAME_HEADER_BYTES..self.rewritten_end + FRAME_HEADER_BYTES + size];
                // The client reports a truncated frame.
                if kind == METHOD {
                    let _ = rewrite_method(payload);
                    // No content is interrupted by a method of its channel, which may be closed and used again.
                    self.return_channels.retain(|returning| *returning != channel);
                    self.unread_bodies.retain(|(unread, _)| *unread != channel);
                    if payload.starts_with(&RETURN_METHOD) {
                        self.return_channels.push(channel);
                    }
                    self.rewritten_end += frame_bytes;
                } else {
                    let _ = rewrite_content_header(payload, self.limits.max_values);
                    self.rewritten_end += self.leave_out_body(channel, size).unwrap_or(frame_bytes);
                }
            }
            BODY_FRAME if self.unread_bodies.iter().any(|(unread, _)| *unread == channel) => {
                self.dropped_bytes = frame_bytes;
                for (_, left) in self.unread_bodies.iter_mut().filter(|(unread, _)| *unread == channel) {
                    *left = left.saturating_sub(size as u64);
                }
                self.unread_bodies.retain(|(_, left)| *left > 0);
            }
            METHOD | CONTENT_HEADER | BODY_FRAME | HEARTBEAT => self.unchanged_bytes = frame_bytes,
            _ => self.is_foreign = true,
        }
        true
    }

    /// Rewrites the content header at the front, of this size, if its body is to be left out. Returns the new length of its frame; `None`
    /// if the length is unchanged.
    fn leave_out_body(&mut self, channel: u16, size: usize) -> Option<usize> {
        let payload = self.rewritten_end + FRAME_HEADER_BYTES;
        let size_range = payload + BODY_SIZE_RANGE.start..payload + BODY_SIZE_RANGE.end;
        let bytes =
            u64::from_be_bytes(self.bytes[payload..payload + size].get(BODY_SIZE_RANGE)?.try_into().ok()?);
        let returned = self.return_channels.iter().position(|returning| *returning == channel);
        if let Some(index) = returned {
            self.return_channels.swap_remove(index);
        } else if bytes <= self.limits.max_body {
            return None;
        }
        if bytes > 0 {
            self.unread_bodies.push((channel, bytes));
        }
        self.bytes[size_range].fill(0);
        if returned.is_some() {
            return None;
        }
        let name = own_headers::UNREAD_BODY.as_bytes();
        let value = [&UNREAD_BODY_MARK[..], &bytes.to_be_bytes()].concat();
        let table = [&[u8::try_from(name.len()).ok()?], name, b"x", &[0, 0, 0, 24], &value].concat();
        let length = u32::try_from(table.len()).ok()?.to_be_bytes();
        let content =
            [&self.bytes[payload..payload + BODY_SIZE_RANGE.end], &HEADERS_ONLY, &length, &table].concat();
        let frame = [&u32::try_from(content.len()).ok()?.to_be_bytes()[..], &content].concat();
        // All but its type, its channel and the octet at its end.
        self.bytes.splice(self.rewritten_end + 3..payload + size, frame);
        Some(FRAME_HEADER_BYTES + content.len() + 1)
    }
}

/// Mark of this process on a delivery without its body: a publisher may send a header with the same name.
static UNREAD_BODY_MARK: LazyLock<[u8; 16]> = LazyLock::new(|| *Uuid::new_v4().as_bytes());

/// Parses the header with the mark: the size of the body that was left out. `None` for a publisher's header.
pub(super) fn parse_unread_body(header: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(header.strip_prefix(&UNREAD_BODY_MARK[..])?.try_into().ok()?))
}

/// Rewrites the methods that hold a publisher's text: the names of an exchange and a routing key. Returns `None` if they are truncated.
fn rewrite_method(payload: &mut [u8]) -> Option<()> {
    let mut cursor = FrameCursor(payload);
    match (cursor.read_u16()?, cursor.read_u16()?) {
        // basic.deliver: consumer tag, delivery tag, redelivered, exchange, routing key.
        (60, 60) => {
            cursor.rewrite_short_string()?;
            cursor.skip(9)?;
        }
        // basic.return: reply code, reply text, exchange, routing key.
        (60, 50) => {
            cursor.skip(2)?;
            cursor.rewrite_short_string()?;
        }
        // basic.get-ok: delivery tag, redelivered, exchange, routing key.
        (60, 71) => cursor.skip(9)?,
        _ => return Some(()),
    }
    cursor.rewrite_short_string()?;
    cursor.rewrite_short_string()
}

/// Rewrites the properties in a content header; returns `None` if they are truncated or invalid.
fn rewrite_content_header(payload: &mut [u8], max_values: usize) -> Option<()> {
    // Class, weight, body size.
    rewrite_properties(payload.get_mut(12..)?, max_values)
}

/// Rewrites a property list as a subscription's; returns `None` if it is truncated or invalid.
pub fn fit_properties(bytes: &mut [u8]) -> Option<()> {
    rewrite_properties(bytes, MAX_VALUES)
}

/// Rewrites a property list; returns `None` if it is truncated or invalid.
fn rewrite_properties(bytes: &mut [u8], max_values: usize) -> Option<()> {
    let mut cursor = FrameCursor(bytes);
    let flags = cursor.read_u16()?;
    for bit in 0..14 {
        if flags & (0x8000 >> bit) == 0 {
            continue;
        }
        match bit {
            // headers
            2 => cursor.rewrite_headers(max_values)?,
            // delivery_mode, priority
            3 | 4 => cursor.skip(1)?,
            // timestamp
            9 => cursor.skip(8)?,
            _ => cursor.rewrite_short_string()?,
        }
    }
    Some(())
}

/// The bytes that are not read yet. Its methods return `None` if the bytes end too soon or are invalid.
struct FrameCursor<'b>(&'b mut [u8]);

impl<'b> FrameCursor<'b> {
    /// Takes the next bytes.
    fn take_bytes(&mut self, count: usize) -> Option<&'b mut [u8]> {
        let (bytes, rest) = std::mem::take(&mut self.0).split_at_mut_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.take_bytes(count).map(drop)
    }

    fn read_u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take_bytes(2)?.try_into().ok()?))
    }

    /// Reads a length of four bytes.
    fn read_length(&mut self) -> Option<usize> {
        usize::try_from(u32::from_be_bytes(self.take_bytes(4)?.try_into().ok()?)).ok()
    }

    /// Rewrites a short string, without bytes that are not UTF-8.
    fn rewrite_short_string(&mut self) -> Option<()> {
        let count = usize::from(*self.take_bytes(1)?.first()?);
        blank_broken_text(self.take_bytes(count)?);
        Some(())
    }

    /// Rewrites all headers, a table; one with too many values becomes [`own_headers::UNREAD`].
    fn rewrite_headers(&mut self, max_values: usize) -> Option<()> {
        let count = self.read_length()?;
        let table = self.take_bytes(count)?;
        let mut values = 0;
        let read = FrameCursor(&mut *table).rewrite_entries(1, &mut values);
        if values > max_values { pack_unread(table) } else { read }
    }

    /// Rewrites names and values of a table at the given level, and adds their number to `values`.
    fn rewrite_entries(mut self, level: u32, values: &mut usize) -> Option<()> {
        while !self.0.is_empty() {
            self.rewrite_short_string()?;
            self.rewrite_value(level, values)?;
        }
        Some(())
    }

    /// Rewrites the values of an array at the given level.
    fn rewrite_items(mut self, level: u32, values: &mut usize) -> Option<()> {
        while !self.0.is_empty() {
            self.rewrite_value(level, values)?;
        }
        Some(())
    }

    /// Rewrites a value in a table or an array at the given level, with its type in front. Types and sizes are RabbitMQ's
    /// (<https://www.rabbitmq.com/amqp-0-9-1-errata>), which the client uses, too.
    fn rewrite_value(&mut self, level: u32, values: &mut usize) -> Option<()> {
        *values += 1;
        let kind = self.take_bytes(1)?.first_mut()?;
        match *kind {
            b'F' | b'A' if level >= MAX_DEPTH => {
                *kind = b'x';
                let count = self.read_length()?;
                self.skip(count)
            }
            b'F' | b'A' => {
                let is_table = *kind == b'F';
                let count = self.read_length()?;
                let inner = FrameCursor(self.take_bytes(count)?);
                if is_table {
                    *values += TABLE_VALUES;
                    inner.rewrite_entries(level + 1, values)
                } else {
                    inner.rewrite_items(level + 1, values)
                }
            }
            b'S' | b'x' => {
                let count = self.read_length()?;
                self.skip(count)
            }
            b't' | b'b' | b'B' => self.skip(1),
            b's' | b'u' | b'U' => self.skip(2),
            b'I' | b'i' | b'f' => self.skip(4),
            b'D' => self.skip(5),
            b'l' | b'L' | b'd' | b'T' => self.skip(8),
            b'V' => Some(()),
            _ => None,
        }
    }
}

/// Packs the bytes of a table into one header, [`own_headers::UNREAD`], except those that the header's name overwrites. The table is always
/// larger than that. Returns `None` if it is not, which never happens.
fn pack_unread(table: &mut [u8]) -> Option<()> {
    let name = own_headers::UNREAD.as_bytes();
    let bytes = table.len().checked_sub(1 + name.len() + 5)?;
    let start =
        [&[u8::try_from(name.len()).ok()?][..], name, b"x", &u32::try_from(bytes).ok()?.to_be_bytes()];
    table.get_mut(..table.len() - bytes)?.copy_from_slice(&start.concat());
    Some(())
}

/// Replaces bytes that are not UTF-8 by NUL.
fn blank_broken_text(bytes: &mut [u8]) {
    let mut from = 0;
    while let Err(error) = str::from_utf8(&bytes[from..]) {
        let broken = from + error.valid_up_to();
        let end = error.error_len().map_or(bytes.len(), |count| broken + count);
        bytes[broken..end].fill(0);
        from = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BODY: u64 = 1_000;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, 1][..], &size, payload, &[0xCE]].concat()
    }

    fn short(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()][..], text].concat()
    }

    /// Returns the client's bytes for a stream that arrives in pieces of this size.
    fn through(bytes: &[u8], piece: usize) -> Vec<u8> {
        let (mut frames, mut out) = (Frames::new(FrameLimits::for_subscription(MAX_BODY)), Vec::new());
        let mut buffer = [0; 7];
        for part in bytes.chunks(piece) {
            frames.reserve(part.len() + 5)[..part.len()].copy_from_slice(part);
            frames.accept(part.len() + 5, part.len());
            loop {
                let count = frames.take(&mut buffer);
                if count == 0 {
                    break;
                }
                out.extend_from_slice(&buffer[..count]);
            }
        }
        out
    }

    fn deliver(routing_key: &[u8]) -> Vec<u8> {
        let tag = [0, 0, 0, 0, 0, 0, 0, 9, 1];
        frame(
            METHOD,
            &[&[0, 60, 0, 60][..], &short(b"tag"), &tag, &short(b"x"), &short(routing_key)].concat(),
        )
    }

    /// headers and message_id.
    fn header(table: &[u8], message_id: &[u8]) -> Vec<u8> {
        let size = u32::try_from(table.len()).unwrap().to_be_bytes();
        let flags = (0x8000_u16 >> 2 | 0x8000 >> 8).to_be_bytes();
        frame(CONTENT_HEADER, &[&[0; 12][..], &flags, &size, table, &short(message_id)].concat())
    }

    /// Returns a header table with a value of nested tables or arrays.
    fn nested(levels: u32, kind: u8) -> Vec<u8> {
        let name: &[u8] = if kind == b'F' { &[1, b't'] } else { &[] };
        let value = (0..levels).fold(vec![b'V'], |inner, _| {
            let size = u32::try_from(name.len() + inner.len()).unwrap().to_be_bytes();
            [&[kind][..], &size, name, &inner].concat()
        });
        [&[1, b't'][..], &value].concat()
    }

    #[test]
    fn text_that_is_not_utf_8_becomes_nul_and_keeps_its_length() {
        let table = [&short(b"na\xffme")[..], &[b'S', 0, 0, 0, 1, 0xff]].concat();
        let sent =
            [deliver(b"a\xff.k"), header(&table, b"caf\xe9\xc3"), frame(BODY_FRAME, b"\xff\xfe")].concat();
        let table = [&short(b"na\0me")[..], &[b'S', 0, 0, 0, 1, 0xff]].concat();
        let got = [deliver(b"a\0.k"), header(&table, b"caf\0\0"), frame(BODY_FRAME, b"\xff\xfe")].concat();
        for piece in [1, 3, 20, 1_000] {
            assert_eq!(through(&sent, piece), got, "in pieces of {piece}");
        }
    }

    /// A content header without properties, for a body of this size.
    fn sized(bytes: u64) -> Vec<u8> {
        frame(CONTENT_HEADER, &[&[0, 60, 0, 0][..], &bytes.to_be_bytes(), &[0, 0]].concat())
    }

    #[test]
    fn a_body_that_nothing_reads_is_left_out() {
        let on = |channel: u8, mut frame: Vec<u8>| {
            frame[2] = channel;
            frame
        };
        let returned = frame(
            METHOD,
            &[&[0, 60, 0, 50, 0, 0][..], &short(b"NO_ROUTE"), &short(b""), &short(b"q")].concat(),
        );
        let body = |bytes: usize| frame(BODY_FRAME, &vec![b'x'; bytes]);
        let name = own_headers::UNREAD_BODY.as_bytes();
        let table =
            [&short(name)[..], b"x", &[0, 0, 0, 24], &UNREAD_BODY_MARK[..], &(MAX_BODY + 1).to_be_bytes()]
                .concat();
        let length = u32::try_from(table.len()).unwrap().to_be_bytes();
        let unread = frame(
            CONTENT_HEADER,
            &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0][..], &length, &table].concat(),
        );
        let sent = [
            deliver(b"k"),
            sized(MAX_BODY + 1),
            body(600),
            // Another channel's content in between.
            on(2, returned.clone()),
            on(2, sized(70)),
            body(400),
            on(2, body(70)),
            body(1),
            deliver(b"k"),
            sized(MAX_BODY),
            body(1_000),
            on(2, returned.clone()),
            on(2, sized(0)),
            deliver(b"k"),
            sized(1),
            body(1),
        ];
        let heartbeat = HEARTBEAT_FRAME.to_vec();
        let got = [
            deliver(b"k"),
            unread,
            heartbeat.clone(),
            on(2, returned.clone()),
            on(2, sized(0)),
            heartbeat.clone(),
            heartbeat.clone(),
            heartbeat,
            deliver(b"k"),
            sized(MAX_BODY),
            body(1_000),
            on(2, returned),
            on(2, sized(0)),
            deliver(b"k"),
            sized(1),
            body(1),
        ];
        for piece in [1, 3, 20, 5_000] {
            assert_eq!(through(&sent.concat(), piece), got.concat(), "in pieces of {piece}");
        }
    }

    #[test]
    fn what_lies_too_deep_becomes_bytes_of_the_same_length() {
        for kind in [b'F', b'A'] {
            let deep = header(&nested(15_000, kind), b"k");
            let got = through(&deep, 4_096);
            assert_eq!(got.len(), deep.len());
            let changed: Vec<usize> = (0..deep.len()).filter(|&at| got[at] != deep[at]).collect();
            assert_eq!(changed.len(), 1, "one type");
            assert_eq!((deep[changed[0]], got[changed[0]]), (kind, b'x'));
            let fit = header(&nested(MAX_DEPTH - 1, kind), b"k");
            assert_eq!(through(&fit, 100), fit);
        }
    }

    #[test]
    fn more_headers_than_are_read_become_one_of_their_bytes() {
        let array = |count: usize| {
            let size = u32::try_from(count).unwrap().to_be_bytes();
            [&short(b"t")[..], b"S\0\0\0\x01a", &short(b"x"), b"A", &size, &vec![b'V'; count]].concat()
        };
        let entries = |count: u16| -> Vec<u8> {
            (0..count).flat_map(|n| [&short(format!("{n}").as_bytes())[..], b"V"].concat()).collect()
        };
        let most = u16::try_from(MAX_VALUES).unwrap();
        for fit in [array(MAX_VALUES - 2), entries(most)] {
            let fit = header(&fit, b"k");
            assert_eq!(through(&fit, 4_096), fit);
        }
        for table in [array(MAX_VALUES - 1), array(120_000), entries(most + 1)] {
            let got = through(&header(&table, b"k"), 4_096);
            let name = short(own_headers::UNREAD.as_bytes());
            let rest = table.len() - name.len() - 5;
            let bytes = u32::try_from(rest).unwrap().to_be_bytes();
            let one = [&name[..], b"x", &bytes, &table[table.len() - rest..]].concat();
            assert_eq!(got, header(&one, b"k"));
        }
    }

    #[test]
    fn what_is_cut_off_or_means_nothing_passes_as_it_is() {
        let unknown = header(&[1, b'n', b'?', 1, 2, 3], b"k");
        let cut = header(&[200, b'n'], b"k");
        let other = frame(METHOD, &[0, 10, 0, 10, 0xff]);
        for sent in [unknown, cut, other, b"AMQP\0\0\x09\x01".to_vec(), frame(HEARTBEAT, b"")] {
            assert_eq!(through(&sent, 3), sent);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_byte_is_lost_or_added(bytes: Vec<u8>, piece in 1_usize..50) {
            let (mut frames, mut count) = (Frames::new(FrameLimits::OWN), 0);
            for part in bytes.chunks(piece) {
                frames.reserve(part.len())[..part.len()].copy_from_slice(part);
                frames.accept(part.len(), part.len());
                count += frames.take(&mut [0; 64]);
            }
            frames.end();
            let mut rest = vec![0; bytes.len()];
            count += frames.take(&mut rest);
            proptest::prop_assert_eq!(count, bytes.len());
        }
    }
}
