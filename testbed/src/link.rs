//! A network link with a delay: forwards TCP connections, and delivers each byte a fixed time after it was received.
//!
//! Every direction of a connection has two threads, one that reads and one that waits and writes, so bytes that are under way delay no
//! others. The timers of tokio have a resolution of 1 ms, too coarse for a round trip of 0.3 ms; threads sleep to within some 10 µs.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Bytes that are read at a time.
const CHUNK: usize = 64 * 1024;
/// Chunks that are under way in one direction of a connection; a sender waits if there are more.
const CHUNKS_UNDER_WAY: usize = 256;

/// Two addresses: a listener's, and that of the server to which its connections are forwarded.
#[derive(Clone, Copy, Debug)]
pub struct Forward {
    /// Listens for clients.
    pub listen: SocketAddr,
    /// Receives what the clients send.
    pub server: SocketAddr,
}

impl std::str::FromStr for Forward {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (listen, server) = text.split_once('=').context("not of the form LISTEN=SERVER")?;
        Ok(Self { listen: listen.parse()?, server: server.parse()? })
    }
}

impl std::fmt::Display for Forward {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}={}", self.listen, self.server)
    }
}

/// Forwards connections, with `delay` in each direction, until this process ends.
///
/// # Errors
/// If an address can't be listened on.
pub fn forward_with_delay(forwards: &[Forward], delay: Duration) -> anyhow::Result<()> {
    // Threads inherit it (prctl(2), PR_SET_TIMERSLACK); by default the kernel adds up to 50 µs to each sleep.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let mut listening = Vec::new();
    for &Forward { listen, server } in forwards {
        let listener = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        listening.push(std::thread::spawn(move || accept(&listener, server, delay)));
    }
    for thread in listening {
        let _ = thread.join();
    }
    Ok(())
}

fn accept(listener: &TcpListener, server: SocketAddr, delay: Duration) {
    for client in listener.incoming().flatten() {
        std::thread::spawn(move || connect(client, server, delay));
    }
}

/// Connects a client to the server; one that can't be reached closes the client's connection.
fn connect(client: TcpStream, server: SocketAddr, delay: Duration) -> std::io::Result<()> {
    // As long as the SYN and its answer would be under way.
    std::thread::sleep(delay * 2);
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || pump(from_client, to_server, delay));
    pump(server, client, delay);
    Ok(())
}

/// Forwards one direction to its end.
fn pump(mut from: TcpStream, to: TcpStream, delay: Duration) {
    let (sender, chunks) = sync_channel(CHUNKS_UNDER_WAY);
    let Ok(reset) = to.try_clone() else { return };
    let writing = std::thread::spawn(move || write_when_due(to, &chunks));
    if read_all(&mut from, &sender, delay).is_err() {
        let _ = reset.shutdown(Shutdown::Both);
    }
    drop(sender);
    let _ = writing.join();
}

fn read_all(
    from: &mut TcpStream,
    chunks: &SyncSender<(Instant, Vec<u8>)>,
    delay: Duration,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = from.read(&mut buffer)?;
        // The writer has ended if its peer is gone.
        if length == 0 || chunks.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
            return Ok(());
        }
    }
}

fn write_when_due(mut to: TcpStream, chunks: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in chunks {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::free_port;

    #[test]
    fn all_bytes_arrive_in_order_and_none_before_its_time() {
        let (server, delay) = (TcpListener::bind("127.0.0.1:0").unwrap(), Duration::from_millis(20));
        let address = server.local_addr().unwrap();
        let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        std::thread::spawn(move || forward_with_delay(&[Forward { listen, server: address }], delay));
        std::thread::spawn(move || {
            // Echoes all bytes.
            let (mut connection, _) = server.accept().unwrap();
            let mut to = connection.try_clone().unwrap();
            std::io::copy(&mut connection, &mut to).unwrap();
            to.shutdown(Shutdown::Write).unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut client = loop {
            match TcpStream::connect(listen) {
                Ok(client) => break client,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        let sent: Vec<u8> = (0..CHUNK * 5).map(|index| (index % 251) as u8).collect();
        let began = Instant::now();
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
        assert!(began.elapsed() >= delay * 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_forward_is_read_as_it_is_written() {
        let text = "198.18.0.1:5432=127.0.0.1:20001";
        assert_eq!(text.parse::<Forward>().unwrap().to_string(), text);
        assert!("198.18.0.1:5432".parse::<Forward>().is_err());
    }
}
