//! A Redis that is not ours: whoever reads its traffic and writes what he likes, and servers that only look like one.

use std::time::Duration;

use futures::StreamExt as _;
use testbed::Redis;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{World, message};

const EFFECTS: &str = "select count(*) from app.effects";

async fn world(settings: &str, url: &str) -> World {
    let mut world = World::new().await;
    world.configure(&format!("[redis]\nurl = {url:?}\n[mirror]\n{settings}\n[audit]\nduplicates = true"));
    world.consumer("payments", "");
    world.apply_topology().await;
    world
}

/// The arguments of a line of MONITOR: `1700000000.1 [0 127.0.0.1:1] "HGET" "bucket" "\x01a"`.
fn arguments(line: &str) -> Vec<Vec<u8>> {
    let mut arguments = Vec::new();
    let mut rest = line.as_bytes();
    while let Some(start) = rest.iter().position(|byte| *byte == b'"') {
        rest = &rest[start + 1..];
        let mut argument = Vec::new();
        loop {
            match rest {
                [b'"', tail @ ..] => break rest = tail,
                [b'\\', b'x', a, b, tail @ ..] => {
                    let digits = [*a, *b];
                    argument.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                    rest = tail;
                }
                [b'\\', byte, tail @ ..] => {
                    let known = [(b'n', b'\n'), (b'r', b'\r'), (b't', b'\t'), (b'a', 7), (b'b', 8)];
                    argument
                        .push(known.iter().find(|(name, _)| name == byte).map_or(*byte, |(_, byte)| *byte));
                    rest = tail;
                }
                [byte, tail @ ..] => {
                    argument.push(*byte);
                    rest = tail;
                }
                [] => return arguments,
            }
        }
        arguments.push(argument);
    }
    arguments
}

/// All that he knows is what he sees: questions, with what they ask for, and the relay's entries.
#[tokio::test]
async fn who_sees_the_questions_and_writes_answers_makes_no_message_vanish() {
    let redis = Redis::start().await.unwrap();
    let mut world = world("budget = \"5s\"", &redis.url()).await;
    let client = redis::Client::open(redis.url()).unwrap();
    let mut monitor = client.get_async_monitor().await.unwrap();
    let mut writer = client.get_multiplexed_async_connection().await.unwrap();
    let (forged, forgeries) = tokio::sync::watch::channel(0_usize);
    let stranger = tokio::spawn(async move {
        let mut real: Option<Vec<u8>> = None;
        let mut lines = monitor.on_message::<String>();
        while let Some(line) = lines.next().await {
            match arguments(&line).as_slice() {
                // The relay's: true evidence, of other messages.
                [verb, _, _, value] if verb == b"HSET" && !line.contains("\"forged\"") => {
                    real.get_or_insert_with(|| value.clone());
                }
                [verb, bucket, field] if verb == b"HGET" || verb == b"HEXISTS" => {
                    let count = *forged.borrow();
                    let value = match count % 5 {
                        0 => b"1".to_vec(),
                        1 => field.clone(),
                        2 => real.clone().unwrap_or_default(),
                        3 => vec![0; 8],
                        _ => Vec::new(),
                    };
                    // Marked, so that he does not take it for the relay's.
                    let mut pipeline = redis::pipe();
                    pipeline.cmd("HSET").arg(bucket).arg(field).arg(value).arg("forged").arg("");
                    pipeline.query_async::<()>(&mut writer).await.unwrap();
                    forged.send_modify(|count| *count += 1);
                }
                _ => {}
            }
        }
    });
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.publish("payments", message("acme", "first"), "{}").await;
    world.wait_for(EFFECTS, 1).await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    for number in 0..20 {
        let key = format!("k{number}");
        world.publish("payments", message("acme", &key), r#"{"do": "fail_once"}"#).await;
    }
    let effects = "select count(distinct key) from app.effects where tenant = 'acme'";
    world.wait_beside_good_ones("payments", effects, 21).await;
    world.stop(worker).await;
    world.stop(relay).await;
    assert!(*forgeries.borrow() > 20, "nothing was asked: {}", *forgeries.borrow());
    stranger.abort();
    assert_eq!(world.count("select count(*) from app.effects where tenant = 'acme'").await, 21);
    let vanished = "select count(*) from oncely.audit where outcome = 'duplicate'";
    assert_eq!(world.count(vanished).await, 0);
}

/// What a server answers to each command, given its last argument. `None`: it says so many bytes once, whatever it is asked.
type Answer = fn(&[u8]) -> Vec<u8>;

const ANSWERS: [(&str, Answer); 12] = [
    ("one", |_| b":1\r\n".to_vec()),
    ("true", |_| b"#t\r\n".to_vec()),
    ("text", |_| b"$1\r\n1\r\n".to_vec()),
    ("zeros", |_| b"$8\r\n\0\0\0\0\0\0\0\0\r\n".to_vec()),
    ("echo", |last| [format!("${}\r\n", last.len()).as_bytes(), last, b"\r\n"].concat()),
    ("fine", |_| b"+OK\r\n".to_vec()),
    ("list", |_| b"*2\r\n:1\r\n$8\r\n12345678\r\n".to_vec()),
    ("twice", |_| b":1\r\n:1\r\n".to_vec()),
    ("error", |_| b"-ERR no\r\n".to_vec()),
    ("deep", |_| b"*1\r\n".repeat(10_000)),
    ("endless", |_| b"$4000000000\r\nx".to_vec()),
    ("noise", |last| last.iter().map(|byte| byte.wrapping_mul(7) ^ 0x5a).cycle().take(500).collect()),
];

/// Reads commands, and answers each in the same way.
async fn serve(stream: TcpStream, answer: Answer) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    async fn number(read: &mut (impl tokio::io::AsyncBufRead + Unpin)) -> std::io::Result<usize> {
        let mut line = String::new();
        read.read_line(&mut line).await?;
        let digits = line.trim_end().get(1..).unwrap_or_default();
        digits.parse().map_err(|_| std::io::ErrorKind::UnexpectedEof.into())
    }
    loop {
        let mut last = Vec::new();
        for _ in 0..number(&mut read).await? {
            last = vec![0; number(&mut read).await? + 2];
            read.read_exact(&mut last).await?;
        }
        last.truncate(last.len().saturating_sub(2));
        write.write_all(&answer(&last)).await?;
    }
}

#[tokio::test]
async fn a_redis_that_answers_whatever_it_likes_to_everything_makes_no_message_vanish() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let mut world = world("budget = \"500ms\"", &url).await;
    let (choose, chosen) = tokio::sync::watch::channel(ANSWERS[0].1);
    let server = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, *chosen.borrow()));
        }
    });
    let queue = world.queue("payments");
    let mut published = 0;
    for (name, answer) in ANSWERS {
        choose.send_replace(answer);
        let (worker, relay) = (world.start("worker"), world.start("relay"));
        world.wait_for_line(&worker, "subscribed").await;
        let keys = (0..200).map(|number| format!("{name}-{number}"));
        let messages = keys.map(|key| (queue.clone(), message("acme", &key), b"{}".to_vec()));
        world.broker.publish_all("", messages.collect()).await.unwrap();
        published += 200;
        world.wait_within(Duration::from_secs(60), EFFECTS, published).await;
        world.stop(worker).await;
        world.stop(relay).await;
    }
    server.abort();
    let vanished = "select count(*) from oncely.audit where outcome = 'duplicate' and reason = 'mirror'";
    assert_eq!(world.count(vanished).await, 0);
    assert_eq!(world.count("select count(distinct key) from app.effects").await, published);
}
