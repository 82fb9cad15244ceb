//! Services that read no body of a request.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A service that takes the body of a request for the next request, as services do that know no body of a GET, or answers before it has read it. In
/// threads of its own: it answers while the other side writes.
pub(crate) struct Rude {
    pub(crate) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

/// What it answers by, and whether its connection goes on.
type Answer = fn(head: &str) -> (u16, bool);

impl Rude {
    /// Answers each head with 200 and its own target as the body, and goes on with what follows it.
    pub(crate) fn deaf() -> Self {
        Self::start(|_| (200, true))
    }

    /// Answers each head and closes, whatever of the body is on its way: with the status that is the first number of its target or of the header
    /// `oncely-key`. Of a body of some megabytes it reads the first three: then its sender, whose system holds so much, is writing just when it closes.
    pub(crate) fn early() -> Self {
        Self::start(|head| {
            let key = head.lines().find_map(|line| line.strip_prefix("oncely-key: "));
            let named = key.or_else(|| head.split(' ').nth(1)).unwrap_or_default();
            let status = named.trim_start_matches('/').split(['/', '-']).next().unwrap_or_default();
            (status.parse().unwrap_or(500), false)
        })
    }

    fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let known = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, known) = (stream.unwrap(), Arc::clone(&known));
                std::thread::spawn(move || drop(serve(stream, answer, &known)));
            }
        });
        Self { address, heads }
    }

    /// The heads of all that it took for requests.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, answer: Answer, heads: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        loop {
            let mut line = Vec::new();
            if stream.read_until(b'\n', &mut line)? == 0 {
                return Ok(());
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.trim().is_empty() {
                break;
            }
            head.push_str(line.trim_end());
            head.push('\n');
        }
        let (status, goes_on) = answer(&head);
        let is_head = head.starts_with("HEAD ");
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        heads.lock().unwrap().push(head);
        if !goes_on && length.unwrap_or(0) > 4_000_000 {
            stream.read_exact(&mut vec![0; 3_000_000])?;
        }
        let connection = if goes_on { "keep-alive" } else { "close" };
        let body = if is_head { "" } else { &target };
        let said = format!(
            "HTTP/1.1 {status} Said\r\nConnection: {connection}\r\nContent-Length: {}\r\n\r\n{body}",
            target.len()
        );
        stream.get_mut().write_all(said.as_bytes())?;
        if !goes_on {
            return Ok(());
        }
    }
}
