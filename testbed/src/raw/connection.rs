//! A connection with one channel in confirm mode.

use std::collections::BTreeSet;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::Context as _;

use super::properties::RawProperties;
use super::value::{RawValue, decode_entries};
use super::wire::{Cursor, long, short};

/// A connection as the default user on the default virtual host. Blocking: use it in `spawn_blocking`.
#[derive(Debug)]
pub struct RawConnection {
    reader: BufReader<TcpStream>,
    writer: BufWriter<TcpStream>,
    frame_max: usize,
    published: u64,
    unconfirmed: BTreeSet<u64>,
}

/// A message as it came.
#[derive(Clone, Debug)]
pub struct RawMessage {
    /// Its routing key.
    pub routing_key: Vec<u8>,
    /// Its properties.
    pub properties: RawProperties,
    /// Its body.
    pub body: Vec<u8>,
}

/// The broker closed the channel or the connection.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the broker refused: {code} {text}")]
pub struct Refusal {
    /// AMQP's reply code, such as 406.
    pub code: u16,
    /// What the broker says, for people.
    pub text: String,
}

impl RawConnection {
    /// The version of the broker, such as 4.0.5; it says so to everybody. The URL gives host and port.
    pub fn version(url: &str) -> anyhow::Result<String> {
        let (_, start) = Self::dial(url)?;
        // Two bytes of the protocol's version, then a table.
        let mut fields = Cursor(&start);
        fields.take(2)?;
        let version = decode_entries(fields.long()?)?.into_iter().find(|(name, _)| name == b"version");
        match version {
            Some((_, RawValue::Text(_, version))) => Ok(String::from_utf8_lossy(&version).into_owned()),
            _ => anyhow::bail!("the broker does not say its version"),
        }
    }

    /// Connects as far as the broker's first method; returns that one's arguments, too.
    fn dial(url: &str) -> anyhow::Result<(Self, Vec<u8>)> {
        let address = url
            .rsplit_once('@')
            .and_then(|(_, rest)| rest.split('/').next())
            .context("the URL names no host")?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut this = Self {
            reader: BufReader::new(stream.try_clone()?),
            writer: BufWriter::new(stream),
            frame_max: 0,
            published: 0,
            unconfirmed: BTreeSet::new(),
        };
        this.writer.write_all(b"AMQP\x00\x00\x09\x01")?;
        let start = this.expect(10, 10)?;
        Ok((this, start))
    }

    /// Connects; the URL gives host and port.
    pub fn open(url: &str) -> anyhow::Result<Self> {
        let (mut this, _) = Self::dial(url)?;
        let mut start_ok = vec![0, 0, 0, 0];
        short(&mut start_ok, b"PLAIN");
        long(&mut start_ok, b"\0guest\0guest");
        short(&mut start_ok, b"en_US");
        this.method(0, 10, 11, &start_ok)?;
        let tune = this.expect(10, 30)?;
        this.frame_max = usize::try_from(Cursor(tune.get(2..).unwrap_or_default()).number::<4>()?)?;
        // The same limits, but no heartbeat.
        this.method(0, 10, 31, &[tune.get(..6).context("too short")?, &[0, 0]].concat())?;
        this.method(0, 10, 40, &[1, b'/', 0, 0])?;
        this.expect(10, 41)?;
        this.method(1, 20, 10, &[0])?;
        this.expect(20, 11)?;
        this.method(1, 85, 10, &[0])?;
        this.expect(85, 11)?;
        Ok(this)
    }

    /// Publishes without waiting; `properties` are flags and values as on the wire, right or wrong.
    pub fn publish(
        &mut self,
        exchange: &str,
        routing_key: &[u8],
        properties: &[u8],
        body: &[u8],
    ) -> anyhow::Result<()> {
        let mut publish = vec![0, 0];
        short(&mut publish, exchange.as_bytes());
        short(&mut publish, routing_key);
        publish.push(0);
        self.write_method(1, 60, 40, &publish)?;
        let mut header = vec![0, 60, 0, 0];
        header.extend((body.len() as u64).to_be_bytes());
        header.extend(properties);
        self.write_frame(2, 1, &header)?;
        // A frame has eight bytes round its payload.
        for part in body.chunks(self.frame_max - 8) {
            self.write_frame(3, 1, part)?;
        }
        self.published += 1;
        self.unconfirmed.insert(self.published);
        Ok(())
    }

    /// Waits until the broker has confirmed everything. Fails with a [`Refusal`] where it closes the channel instead.
    pub fn wait_for_confirms(&mut self) -> anyhow::Result<()> {
        while !self.unconfirmed.is_empty() {
            let confirm = self.expect(60, 80)?;
            let mut fields = Cursor(&confirm);
            let (tag, up_to) = (fields.number::<8>()?, fields.number::<1>()? & 1 == 1);
            // Not in the order of publishing.
            self.unconfirmed.retain(|unconfirmed| *unconfirmed != tag && (!up_to || *unconfirmed > tag));
        }
        Ok(())
    }

    /// Takes (and acknowledges) one message, if there is one.
    pub fn take(&mut self, queue: &str) -> anyhow::Result<Option<RawMessage>> {
        let mut get = vec![0, 0];
        short(&mut get, queue.as_bytes());
        get.push(1);
        self.method(1, 60, 70, &get)?;
        let (id, arguments) = self.read_method()?;
        match id {
            (60, 72) => return Ok(None),
            (60, 71) => {}
            other => anyhow::bail!("the broker answered {other:?} to basic.get"),
        }
        let mut fields = Cursor(&arguments);
        fields.take(9)?;
        fields.short()?;
        let routing_key = fields.short()?.to_vec();
        let (kind, header) = self.read_frame()?;
        anyhow::ensure!(kind == 2, "a header was expected");
        let mut fields = Cursor(&header);
        fields.take(4)?;
        let size = usize::try_from(fields.number::<8>()?)?;
        let properties = RawProperties::decode(fields.0)?;
        let mut body = Vec::with_capacity(size);
        while body.len() < size {
            let (kind, part) = self.read_frame()?;
            anyhow::ensure!(kind == 3, "a body was expected");
            body.extend(part);
        }
        Ok(Some(RawMessage { routing_key, properties, body }))
    }

    fn method(&mut self, channel: u16, class: u16, id: u16, arguments: &[u8]) -> anyhow::Result<()> {
        self.write_method(channel, class, id, arguments)?;
        Ok(self.writer.flush()?)
    }

    fn write_method(&mut self, channel: u16, class: u16, id: u16, arguments: &[u8]) -> anyhow::Result<()> {
        let mut payload = class.to_be_bytes().to_vec();
        payload.extend(id.to_be_bytes());
        payload.extend(arguments);
        self.write_frame(1, channel, &payload)
    }

    fn write_frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> anyhow::Result<()> {
        let mut bytes = vec![kind];
        bytes.extend(channel.to_be_bytes());
        long(&mut bytes, payload);
        bytes.push(0xce);
        Ok(self.writer.write_all(&bytes)?)
    }

    fn read_frame(&mut self) -> anyhow::Result<(u8, Vec<u8>)> {
        self.writer.flush()?;
        let mut head = [0_u8; 7];
        self.reader.read_exact(&mut head)?;
        let size = Cursor(&head[3..]).number::<4>()?;
        let mut payload = vec![0; usize::try_from(size)? + 1];
        self.reader.read_exact(&mut payload)?;
        anyhow::ensure!(payload.pop() == Some(0xce), "a frame without its end");
        Ok((head[0], payload))
    }

    /// The next method and its arguments.
    fn read_method(&mut self) -> anyhow::Result<((u64, u64), Vec<u8>)> {
        loop {
            let (kind, payload) = self.read_frame()?;
            if kind != 1 {
                continue;
            }
            let mut fields = Cursor(&payload);
            let id = (fields.number::<2>()?, fields.number::<2>()?);
            if matches!(id, (10, 50) | (20, 40)) {
                let code = u16::try_from(fields.number::<2>()?)?;
                let text = String::from_utf8_lossy(fields.short()?).into_owned();
                return Err(Refusal { code, text }.into());
            }
            return Ok((id, fields.0.to_vec()));
        }
    }

    /// Reads until this method comes; returns its arguments.
    fn expect(&mut self, class: u64, id: u64) -> anyhow::Result<Vec<u8>> {
        let (found, arguments) =
            self.read_method().with_context(|| format!("waiting for method {class}.{id}"))?;
        anyhow::ensure!(found == (class, id), "the broker answered {found:?} instead of {class}.{id}");
        Ok(arguments)
    }
}
