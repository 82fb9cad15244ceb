//! The service behind a gateway: it keeps books of all that it is sent, byte for byte, and does what the path says.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use testbed::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// A request as it came.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Its line and headers.
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Call {
    /// The values of a header.
    pub(super) fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }

    pub(super) fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

/// The service. `POST /do/torn,201` is torn the first time, and answered with 201 then.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    books: Books,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
struct Books {
    calls: Arc<Mutex<Vec<Call>>>,
    /// One permit for each step of an answer that waits.
    gate: Arc<Semaphore>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Upstream {
    pub(super) async fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().unwrap();
        let books = Books { calls: Arc::default(), gate: Arc::new(Semaphore::new(0)) };
        let own = books.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let books = own.clone();
                // A client that leaves ends it.
                tokio::spawn(async move { drop(books.serve(stream).await) });
            }
        });
        Self { address, books, serving }
    }

    /// Nobody listens there any more.
    pub(super) async fn end(&mut self) {
        self.serving.abort();
        // Over when the listener is closed.
        let _ = (&mut self.serving).await;
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.books.calls.lock().unwrap().clone()
    }

    /// The calls of a path.
    pub(super) fn calls_of(&self, path: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.target().split('?').next() == Some(path)).collect()
    }

    pub(super) async fn wait_for_calls(&self, count: usize) {
        eventually(&format!("{count} calls"), || async {
            let calls = self.calls().len();
            if calls == count { Ok(()) } else { Err(format!("{calls}")) }
        })
        .await
        .unwrap();
    }

    /// Lets an answer that waits go on by one step.
    pub(super) fn go_on(&self) {
        self.go_on_by(1);
    }

    /// Lets answers that wait go on by so many steps between them.
    pub(super) fn go_on_by(&self, steps: usize) {
        self.books.gate.add_permits(steps);
    }
}

impl Books {
    async fn serve(self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(call) = read(&mut stream).await? {
            let target = call.target().to_owned();
            let before = {
                let mut calls = self.calls.lock().unwrap();
                let before = calls.iter().filter(|other| other.target() == target).count();
                calls.push(call.clone());
                before
            };
            let path = target.split('?').next().unwrap_or_default();
            let script: Vec<&str> = path.strip_prefix("/do/").unwrap_or("200").split(',').collect();
            let action = script[before.min(script.len() - 1)];
            if !self.act(action, before + 1, &call, &mut stream).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Answers; does the connection go on?
    async fn act(
        &self,
        action: &str,
        number: usize,
        call: &Call,
        stream: &mut BufReader<TcpStream>,
    ) -> std::io::Result<bool> {
        let head = |status: &str, more: &str| {
            format!(
                "HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nSet-Cookie: session=1\r\nX-Count: {number}\r\n{more}"
            )
        };
        let whole = |status: &str, body: &str| {
            format!("{}Content-Length: {}\r\n\r\n{body}", head(status, ""), body.len())
        };
        match action {
            "torn" => {
                let torn = format!("{}Content-Length: 100\r\n\r\n{{", head("201", ""));
                stream.write_all(torn.as_bytes()).await?;
                return Ok(false);
            }
            // Half of it, or all: only the end of the connection tells.
            "unsized" => {
                let unsized_answer = format!("{}Connection: close\r\n\r\n{{\"half\":", head("201", ""));
                stream.write_all(unsized_answer.as_bytes()).await?;
                return Ok(false);
            }
            "nothing" => return Ok(false),
            "hang" => {
                self.step().await;
                stream.write_all(whole("201", "{\"late\": true}").as_bytes()).await?;
            }
            // As long as is held by default.
            "full" => {
                self.step().await;
                stream.write_all(whole("201", &"x".repeat(1 << 18)).as_bytes()).await?;
            }
            "events" => {
                let events =
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\ndata: 1\n\n";
                stream.write_all(events.as_bytes()).await?;
                self.step().await;
                return Ok(false);
            }
            "large" => {
                stream.write_all(whole("201", &"x".repeat(300_000)).as_bytes()).await?;
            }
            "headers" => {
                let more = "Access-Control-Allow-Origin: https://app.example\r\nAccess-Control-Expose-Headers: X-Count\r\nVary: Origin\r\n\
                            Content-Disposition: attachment\r\nContent-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\n\
                            WWW-Authenticate: Basic\r\nAge: 7\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
                let answer = format!("{}Content-Length: 2\r\n\r\n{{}}", head("201", more));
                stream.write_all(answer.as_bytes()).await?;
            }
            "large-torn" => {
                let torn = format!("{}Content-Length: 600000\r\n\r\n", head("201", ""));
                stream.write_all(torn.as_bytes()).await?;
                stream.write_all(&vec![b'x'; 400_000]).await?;
                return Ok(false);
            }
            "large-chunked" | "large-chunked-torn" => {
                stream.write_all(head("201", "Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await?;
                for _ in 0..if action == "large-chunked" { 60 } else { 40 } {
                    stream
                        .write_all(format!("{:x}\r\n{}\r\n", 10_000, "y".repeat(10_000)).as_bytes())
                        .await?;
                }
                if action == "large-chunked-torn" {
                    return Ok(false);
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            "many" | "folded" => {
                let more = match action {
                    "many" => (0..300).map(|number| format!("X-Many-{number}: {number}\r\n")).collect(),
                    _ => "X-Folded: one\r\n two\r\n".to_owned(),
                };
                let answer = format!("{}Content-Length: 2\r\n\r\n{{}}", head("201", &more));
                stream.write_all(answer.as_bytes()).await?;
            }
            "drip" => {
                stream.write_all(head("200", "Transfer-Encoding: chunked\r\n\r\n").as_bytes()).await?;
                for piece in ["5\r\nfirst\r\n", "6\r\nsecond\r\n", "0\r\nX-Trailer: 1\r\n\r\n"] {
                    stream.write_all(piece.as_bytes()).await?;
                    stream.flush().await?;
                    self.step().await;
                }
            }
            "hops" => {
                let hops = "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nLink: </a>; rel=next\r\n";
                let answer = format!("{}Content-Length: 2\r\n\r\n{{}}", head("200", hops));
                stream.write_all(answer.as_bytes()).await?;
            }
            "switch" => {
                stream
                    .write_all(
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
                    )
                    .await?;
                return Ok(false);
            }
            "early" => {
                stream.write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n").await?;
                stream.write_all(whole("200", "{}").as_bytes()).await?;
            }
            "head" => {
                stream.write_all(head("200", "Content-Length: 1234\r\n\r\n").as_bytes()).await?;
            }
            status => {
                let body = format!("{{\"call\": {number}, \"bytes\": {}}}", call.body.len());
                stream.write_all(whole(status, &body).as_bytes()).await?;
            }
        }
        stream.flush().await?;
        Ok(true)
    }

    async fn step(&self) {
        self.gate.acquire().await.unwrap().forget();
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    line.truncate(line.len() - 2);
    Ok(String::from_utf8(line).unwrap())
}

/// The next request; none where the client is done.
async fn read(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Call>> {
    let mut head = Vec::new();
    loop {
        match line(stream).await {
            Ok(line) if line.is_empty() => break,
            Ok(line) => head.push(line),
            Err(error) if head.is_empty() && error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    let mut call = Call { head: head.join("\n"), body: Vec::new() };
    let length = call.headers("content-length").first().map(|length| length.parse::<usize>().unwrap());
    if call.headers("transfer-encoding").is_empty() {
        call.body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut call.body).await?;
        return Ok(Some(call));
    }
    loop {
        let size = usize::from_str_radix(&line(stream).await?, 16).unwrap();
        let mut piece = vec![0; size];
        stream.read_exact(&mut piece).await?;
        call.body.extend(piece);
        let after = line(stream).await?;
        if size == 0 {
            assert_eq!(after, "", "a trailer came through");
            return Ok(Some(call));
        }
    }
}
