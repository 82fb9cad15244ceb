//! The provider as a service behind a gateway: it knows no keys, is slow, breaks off in its answers, and answers at length.
//!
//! Each call has a number of its own, which its answer names: half of an answer is no JSON.

use std::sync::Mutex;

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::{Books, lock, now, number_of, work};
use crate::checker::{Answer, Call, Side};

/// Longer than what a gateway of a trial holds of an answer, and than what it stores.
const LONG: usize = 200_000;
/// Longer than what it stores.
const LARGE: usize = 60_000;
/// For pages of every origin.
const ORIGIN: &str = "Access-Control-Allow-Origin: https://app.example\r\nVary: Origin\r\n";

/// Takes a request.
pub(super) async fn serve(
    mut stream: BufReader<TcpStream>,
    line: &str,
    books: &Mutex<Books>,
) -> anyhow::Result<()> {
    let request = Request::read(&mut stream).await?;
    if line.starts_with("OPTIONS ") {
        let allowed =
            "Access-Control-Allow-Methods: POST\r\nAccess-Control-Allow-Headers: *\r\nConnection: close\r\n";
        let answer = format!("HTTP/1.1 204 No Content\r\n{ORIGIN}{allowed}\r\n");
        return Ok(stream.write_all(answer.as_bytes()).await?);
    }
    let key = (request.header("x-tenant-id")?, request.header("idempotency-key")?);
    let order: Value = serde_json::from_slice(&request.body)?;
    let number = |name: &str| order[name].as_u64().unwrap_or(0);
    let mut call = Call {
        key,
        side: Side::Once,
        call_key: String::new(),
        token: 0,
        at: now(),
        answered: None,
        answer: Answer::Done,
    };
    let size = number_of(&call.key);
    let (answer, name, number_of_call) = {
        let mut books = lock(books);
        call.token = i64::try_from(books.calls_before(&call) + 1)?;
        call.call_key = format!("{}#{}", call.key.1, call.token);
        let name = call.call_key.clone();
        let answer = books.take(call, number("tears"), number("refusals")).0;
        (answer, name, books.calls.len() - 1)
    };
    work(books, number("delay")).await;
    send_answer(&mut stream, answer, &name, size).await?;
    lock(books).calls[number_of_call].answered = Some(now());
    Ok(())
}

async fn send_answer(
    stream: &mut BufReader<TcpStream>,
    answer: Answer,
    call: &str,
    size: u64,
) -> anyhow::Result<()> {
    let padding = [20, 20, 20, LARGE, LONG][usize::try_from(size % 5)?];
    let body = json!({ "call": call, "padding": "x".repeat(padding) }).to_string();
    let head = |status: &str, framing: &str| {
        format!(
            "HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nConnection: close\r\n{ORIGIN}{framing}\r\n"
        )
    };
    let length = |body: &str| format!("Content-Length: {}\r\n", body.len());
    // Shorter than what a gateway holds before it passes an answer on.
    let half = &body[..20];
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let is_long = padding == LONG;
    let text = match answer {
        Answer::Refused => head("503", &length("{}")) + "{}",
        Answer::Done | Answer::Known if is_long => {
            head("201", "Transfer-Encoding: chunked\r\n") + &chunk(&body) + "0\r\n\r\n"
        }
        Answer::Done | Answer::Known => head("201", &length(&body)) + &body,
        // Its head has said that it took effect: no other one may have it.
        Answer::Torn { happened: true } if is_long => {
            head("201", "Transfer-Encoding: chunked\r\n") + &chunk(&body[..body.len() - 20_000])
        }
        Answer::Torn { .. } => match size % 3 {
            0 => String::new(),
            1 => head("201", &length(&body)) + half,
            _ => head("500", &length("{}")) + "{}",
        },
    };
    Ok(stream.write_all(text.as_bytes()).await?)
}

struct Request {
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// Reads what follows the first line.
    async fn read(stream: &mut BufReader<TcpStream>) -> anyhow::Result<Self> {
        let mut request = Self { headers: Vec::new(), body: Vec::new() };
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            request.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length = request.header("content-length").map_or(Ok(0), |length| length.parse())?;
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body).await?;
        Ok(request)
    }

    fn header(&self, name: &str) -> anyhow::Result<String> {
        let mut named = self.headers.iter().filter(|(known, _)| known == name);
        named.next().map(|(_, value)| value.clone()).with_context(|| format!("no {name}"))
    }
}
