//! Publishes what a client library cannot send: properties byte by byte, over a socket of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::Context as _;

/// Basic properties as they stand on the wire: flags, then values in their order (AMQP 0-9-1, section 4.2.6.1).
#[derive(Clone, Debug, Default)]
pub struct RawProperties {
    headers: Option<Vec<u8>>,
    correlation_id: Option<Vec<u8>>,
    message_id: Option<Vec<u8>>,
}

impl RawProperties {
    /// Headers with text values; a name may come twice, names and values may be any bytes.
    #[must_use]
    pub fn headers(mut self, entries: &[(&[u8], &[u8])]) -> Self {
        let mut table = Vec::new();
        for (name, value) in entries {
            short(&mut table, name);
            table.push(b'S');
            long(&mut table, value);
        }
        self.headers = Some(table);
        self
    }

    /// Any bytes, 255 at most.
    #[must_use]
    pub fn message_id(mut self, bytes: &[u8]) -> Self {
        self.message_id = Some(bytes.to_vec());
        self
    }

    /// Any bytes, 255 at most.
    #[must_use]
    pub fn correlation_id(mut self, bytes: &[u8]) -> Self {
        self.correlation_id = Some(bytes.to_vec());
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut flags: u16 = 1 << 12;
        let mut values = Vec::new();
        if let Some(table) = &self.headers {
            flags |= 1 << 13;
            long(&mut values, table);
        }
        // Delivery mode: persistent.
        values.push(2);
        if let Some(id) = &self.correlation_id {
            flags |= 1 << 10;
            short(&mut values, id);
        }
        if let Some(id) = &self.message_id {
            flags |= 1 << 7;
            short(&mut values, id);
        }
        let mut encoded = flags.to_be_bytes().to_vec();
        encoded.extend(values);
        encoded
    }
}

/// Publishes one message to a queue, as the default user on the default virtual host, and waits for the confirm.
pub async fn publish_raw(
    url: &str,
    queue: &str,
    properties: RawProperties,
    body: &[u8],
) -> anyhow::Result<()> {
    let address = url
        .rsplit_once('@')
        .and_then(|(_, rest)| rest.split('/').next())
        .context("the URL names no host")?
        .to_owned();
    let (queue, body) = (queue.to_owned(), body.to_vec());
    tokio::task::spawn_blocking(move || publish(&address, &queue, &properties, &body)).await?
}

fn publish(address: &str, queue: &str, properties: &RawProperties, body: &[u8]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    stream.write_all(b"AMQP\x00\x00\x09\x01")?;
    expect(&mut stream, 10, 10)?;
    let mut start_ok = vec![0, 0, 0, 0];
    short(&mut start_ok, b"PLAIN");
    long(&mut start_ok, b"\0guest\0guest");
    short(&mut start_ok, b"en_US");
    method(&mut stream, 0, 10, 11, &start_ok)?;
    let tune = expect(&mut stream, 10, 30)?;
    // The same limits, but no heartbeat.
    method(&mut stream, 0, 10, 31, &[&tune[..6], &[0, 0]].concat())?;
    method(&mut stream, 0, 10, 40, &[1, b'/', 0, 0])?;
    expect(&mut stream, 10, 41)?;
    method(&mut stream, 1, 20, 10, &[0])?;
    expect(&mut stream, 20, 11)?;
    method(&mut stream, 1, 85, 10, &[0])?;
    expect(&mut stream, 85, 11)?;
    let mut publish = vec![0, 0];
    short(&mut publish, b"");
    short(&mut publish, queue.as_bytes());
    publish.push(0);
    method(&mut stream, 1, 60, 40, &publish)?;
    let mut header = vec![0, 60, 0, 0];
    header.extend((body.len() as u64).to_be_bytes());
    header.extend(properties.encode());
    frame(&mut stream, 2, 1, &header)?;
    frame(&mut stream, 3, 1, body)?;
    expect(&mut stream, 60, 80)?;
    Ok(())
}

fn short(to: &mut Vec<u8>, bytes: &[u8]) {
    to.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    to.extend(bytes.iter().take(255));
}

fn long(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

fn method(stream: &mut TcpStream, channel: u16, class: u16, id: u16, arguments: &[u8]) -> anyhow::Result<()> {
    let mut payload = class.to_be_bytes().to_vec();
    payload.extend(id.to_be_bytes());
    payload.extend(arguments);
    frame(stream, 1, channel, &payload)
}

fn frame(stream: &mut TcpStream, kind: u8, channel: u16, payload: &[u8]) -> anyhow::Result<()> {
    let mut bytes = vec![kind];
    bytes.extend(channel.to_be_bytes());
    long(&mut bytes, payload);
    bytes.push(0xce);
    Ok(stream.write_all(&bytes)?)
}

/// Reads frames until this method comes; returns its arguments.
fn expect(stream: &mut TcpStream, class: u16, id: u16) -> anyhow::Result<Vec<u8>> {
    loop {
        let mut head = [0_u8; 7];
        stream.read_exact(&mut head).with_context(|| format!("no answer {class}.{id}"))?;
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        let mut payload = vec![0; size + 1];
        stream.read_exact(&mut payload)?;
        if head[0] != 1 || payload.len() < 5 {
            continue;
        }
        let found =
            (u16::from_be_bytes([payload[0], payload[1]]), u16::from_be_bytes([payload[2], payload[3]]));
        if found == (class, id) {
            payload.pop();
            return Ok(payload.split_off(4));
        }
        anyhow::bail!("the broker answered {}.{} instead of {class}.{id}", found.0, found.1);
    }
}
