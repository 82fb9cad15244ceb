//! What a program sends to a server.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A port in front of a server, where what comes from programs is kept, by connection.
pub(crate) struct Recorder {
    pub(crate) port: u16,
    sent: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    pub(crate) async fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let recorder = Self { port: listener.local_addr().unwrap().port(), sent: Arc::default() };
        let sent = Arc::clone(&recorder.sent);
        tokio::spawn(async move {
            loop {
                let (program, _) = listener.accept().await.unwrap();
                let number = {
                    let mut sent = sent.lock().unwrap();
                    sent.push(Vec::new());
                    sent.len() - 1
                };
                tokio::spawn(pass_on(program, upstream, Arc::clone(&sent), number));
            }
        });
        recorder
    }

    /// All connections so far.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        self.sent.lock().unwrap().clone()
    }
}

async fn pass_on(program: TcpStream, upstream: u16, sent: Arc<Mutex<Vec<Vec<u8>>>>, number: usize) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)).await else { return };
    let (mut from_program, mut to_program) = program.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let answers = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_program).await;
    });
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from_program.read(&mut buffer).await {
        sent.lock().unwrap()[number].extend(&buffer[..read]);
        if to_server.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to_server.shutdown().await;
    let _ = answers.await;
}

/// Is this at most a greeting and a good-bye: PostgreSQL's question for TLS, the first message of a handshake (twice, where the server asks for
/// another kind of key), an alert?
pub(crate) fn is_guarded(sent: &[u8]) -> bool {
    // What a Redis is asked that is silent in a handshake.
    if sent == b"PING\r\n" {
        return true;
    }
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
    const CLIENT_HELLO: u8 = 1;
    let mut rest = sent.strip_prefix(&SSL_REQUEST).unwrap_or(sent);
    loop {
        let hello = record(rest, 0x16).filter(|(message, _)| message.first() == Some(&CLIENT_HELLO));
        // What old devices between the two want to see.
        match hello.or_else(|| record(rest, 0x14)) {
            Some((_, after)) => rest = after,
            None => break,
        }
    }
    // In TLS 1.3 an alert is encrypted, and looks like data of its length.
    let alert = record(rest, 0x15).or_else(|| record(rest, 0x17)).filter(|(alert, _)| alert.len() < 32);
    alert.map_or(rest, |(_, after)| after).is_empty()
}

/// A record of this type, and what follows it.
fn record(bytes: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(5)?;
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    (head[0] == kind && head[1] == 3).then(|| rest.split_at_checked(length)).flatten()
}
