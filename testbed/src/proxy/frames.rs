//! Where one message of a protocol ends and the next begins.

use std::collections::HashSet;

use super::{Direction, Protocol};

/// A complete message, or any bytes where the protocol is not looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) bytes: Vec<u8>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Other,
    /// PostgreSQL: what is done is committed with it.
    Commit,
    /// AMQP: class and method.
    Method(u16, u16),
}

impl Frame {
    /// A simple query `COMMIT`, or a worker's statement that is a transaction of its own.
    pub(super) fn is_commit(&self) -> bool {
        self.kind == Kind::Commit
    }

    pub(super) fn is_method(&self, class: u16, method: u16) -> bool {
        self.kind == Kind::Method(class, method)
    }
}

/// Cuts a stream into messages. Holds back an incomplete one: its receiver could not use it either.
#[derive(Debug)]
pub(super) struct Frames {
    stage: Stage,
    buffer: Vec<u8>,
    session: Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Plain,
    /// Length first, without a type, until the one that is no question about encryption.
    PostgresStartup,
    Postgres,
    /// Eight bytes.
    AmqpHeader,
    Amqp,
}

/// "Will you speak TLS?", "GSSAPI?": more start-up messages follow.
const ENCRYPTION: [u32; 2] = [80_877_103, 80_877_104];

impl Frames {
    pub(super) fn new(protocol: Protocol, direction: Direction) -> Self {
        let stage = match (protocol, direction) {
            (Protocol::Postgres, Direction::Up) => Stage::PostgresStartup,
            (Protocol::Amqp, Direction::Up) => Stage::AmqpHeader,
            (Protocol::Amqp, Direction::Down) => Stage::Amqp,
            _ => Stage::Plain,
        };
        Self { stage, buffer: Vec::new(), session: Session::default() }
    }

    /// Adds bytes; returns what is complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Frame> {
        if self.stage == Stage::Plain {
            return vec![Frame { bytes: bytes.to_vec(), kind: Kind::Other }];
        }
        self.buffer.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while let Some((length, kind, next)) = self.look() {
            if self.buffer.len() < length {
                break;
            }
            let rest = self.buffer.split_off(length);
            let bytes = std::mem::replace(&mut self.buffer, rest);
            let kind = match self.stage {
                Stage::Postgres if self.session.commits(&bytes) => Kind::Commit,
                _ => kind,
            };
            frames.push(Frame { bytes, kind });
            self.stage = next;
        }
        frames
    }

    /// Length and kind of the first message, as far as its head is there, and what comes after it.
    fn look(&self) -> Option<(usize, Kind, Stage)> {
        let number = |at: usize| -> Option<u32> {
            Some(u32::from_be_bytes(self.buffer.get(at..at + 4)?.try_into().ok()?))
        };
        let short = |at: usize| -> Option<u16> {
            Some(u16::from_be_bytes(self.buffer.get(at..at + 2)?.try_into().ok()?))
        };
        match self.stage {
            Stage::Plain => None,
            Stage::PostgresStartup => {
                let next =
                    if ENCRYPTION.contains(&number(4)?) { Stage::PostgresStartup } else { Stage::Postgres };
                Some((number(0)? as usize, Kind::Other, next))
            }
            Stage::Postgres => Some((number(1)? as usize + 1, Kind::Other, Stage::Postgres)),
            Stage::AmqpHeader => (self.buffer.len() >= 8).then_some((8, Kind::Other, Stage::Amqp)),
            Stage::Amqp => {
                let length = number(3)? as usize + 8;
                let kind = if *self.buffer.first()? == 1 && length >= 12 {
                    Kind::Method(short(7)?, short(9)?)
                } else {
                    Kind::Other
                };
                Some((length, kind, Stage::Amqp))
            }
        }
    }
}

/// What a session of PostgreSQL has said so far.
#[derive(Debug, Default)]
struct Session {
    /// Between BEGIN and COMMIT.
    open: bool,
    /// Names of prepared statements that do all of a transaction.
    whole: HashSet<Vec<u8>>,
}

/// What a worker's statement that may be a whole transaction has in its text.
const WHOLE: &[u8] = b"oncely.record_fresh(";

impl Session {
    /// Is a transaction committed with this message?
    fn commits(&mut self, message: &[u8]) -> bool {
        let Some((kind, text)) = message.split_first().and_then(|(kind, rest)| Some((*kind, rest.get(4..)?)))
        else {
            return false;
        };
        let mut parts = text.split(|byte| *byte == 0);
        let (first, second) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        match kind {
            b'Q' => {
                let words: Vec<u8> =
                    first.trim_ascii().iter().map(|byte| byte.to_ascii_lowercase()).collect();
                let is = |word: &str| {
                    words.strip_prefix(word.as_bytes()).is_some_and(|rest| {
                        rest.first().is_none_or(|next| !next.is_ascii_alphanumeric() && *next != b'_')
                    })
                };
                if is("begin") {
                    self.open = true;
                }
                if is("commit") || is("rollback") {
                    self.open = false;
                }
                is("commit")
            }
            // Parse: a statement's name, and its text.
            b'P' => {
                if second.windows(WHOLE.len()).any(|text| text == WHOLE) {
                    self.whole.insert(first.to_vec());
                }
                false
            }
            // Bind: a portal's name, and a statement's.
            b'B' => !self.open && self.whole.contains(second),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn postgres(kind: u8, text: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend((u32::try_from(text.len()).unwrap() + 4).to_be_bytes());
        bytes.extend(text);
        bytes
    }

    #[test]
    fn a_commit_is_found_however_the_stream_is_cut() {
        let mut stream = vec![0, 0, 0, 8, 4, 210, 22, 47]; // TLS?
        stream.extend([0, 0, 0, 9, 0, 3, 0, 0, 0]); // Start-up.
        stream.extend(postgres(b'Q', b"BEGIN\0"));
        stream.extend(postgres(b'B', b"COMMIT\0"));
        stream.extend(postgres(b'Q', b"Commit\0"));
        stream.extend(postgres(b'Q', b"committed_at\0"));
        for size in [1, 2, 7, 1_000] {
            let mut frames = Frames::new(Protocol::Postgres, Direction::Up);
            let found: Vec<Frame> = stream.chunks(size).flat_map(|piece| frames.push(piece)).collect();
            let commits: Vec<bool> = found.iter().map(Frame::is_commit).collect();
            assert_eq!(commits, [false, false, false, false, true, false], "{size}");
            assert_eq!(found.iter().flat_map(|frame| frame.bytes.clone()).collect::<Vec<u8>>(), stream);
        }
    }

    #[test]
    fn a_statement_that_does_a_whole_transaction_is_a_commit_outside_of_one() {
        let mut stream = vec![0, 0, 0, 9, 0, 3, 0, 0, 0];
        stream.extend(postgres(b'P', b"s1\0select oncely.record_fresh($1)\0\0\0"));
        stream.extend(postgres(b'P', b"s2\0select 1\0\0\0"));
        stream.extend(postgres(b'B', b"\0s1\0\0\0"));
        stream.extend(postgres(b'B', b"\0s2\0\0\0"));
        stream.extend(postgres(b'Q', b"BEGIN\0"));
        stream.extend(postgres(b'B', b"\0s1\0\0\0"));
        stream.extend(postgres(b'Q', b"ROLLBACK\0"));
        stream.extend(postgres(b'B', b"\0s1\0\0\0"));
        let mut frames = Frames::new(Protocol::Postgres, Direction::Up);
        let commits: Vec<bool> = frames.push(&stream).iter().map(Frame::is_commit).collect();
        assert_eq!(commits, [false, false, false, true, false, false, false, false, true]);
    }

    #[test]
    fn an_acknowledgement_is_a_method_of_class_60() {
        let mut stream = b"AMQP\x00\x00\x09\x01".to_vec();
        stream.extend([1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0xce]);
        // A body that looks like one.
        stream.extend([3, 0, 1, 0, 0, 0, 4, 0, 60, 0, 80, 0xce]);
        stream.extend([8, 0, 0, 0, 0, 0, 0, 0xce]);
        for size in [1, 3, 1_000] {
            let mut frames = Frames::new(Protocol::Amqp, Direction::Up);
            let found: Vec<Frame> = stream.chunks(size).flat_map(|piece| frames.push(piece)).collect();
            let acks: Vec<bool> = found.iter().map(|frame| frame.is_method(60, 80)).collect();
            assert_eq!(acks, [false, true, false, false], "{size}");
        }
    }
}
