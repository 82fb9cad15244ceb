//! Neighbours with few rights that mean harm: each does what it may, all the time and at a bounded rate. What it may not is refused, and
//! the usual invariants hold.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use fastrand::Rng;
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::config::CONSUMER;
use super::member::address;
use super::neighbour::Neighbour;
use crate::Urls;
use crate::checker::Intent;

/// Of so many messages the neighbours hear of one before it is published.
const OVERHEARD: usize = 25;
/// Fields written into Redis in a second, at the most.
const FIELDS: u32 = 200;

/// See the module.
#[derive(Debug)]
pub(super) struct Neighbours {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<VecDeque<(String, String)>>>,
    junk: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Neighbours {
    pub(super) async fn start(
        who: &[Neighbour],
        urls: &Urls,
        database: &str,
        queue: &str,
    ) -> anyhow::Result<Self> {
        let server = address(&urls.postgres)?;
        let url = |user: &str| format!("postgres://{user}@{server}/{database}");
        let mut all = Self {
            stop: Arc::new(AtomicBool::new(false)),
            heard: Arc::default(),
            junk: Arc::default(),
            tasks: Vec::new(),
        };
        for neighbour in who {
            let stop = Arc::clone(&all.stop);
            let task = match neighbour {
                Neighbour::Client => tokio::spawn(
                    Client { url: url("arena_client"), heard: Arc::clone(&all.heard), stop }.run(),
                ),
                Neighbour::Stranger => {
                    let queue = queue.to_owned();
                    tokio::spawn(Stranger { url: url("arena_stranger"), queue, stop }.run())
                }
                Neighbour::Creator => {
                    let (front, _) = urls.postgres.rsplit_once('/').context("a URL without a database")?;
                    squat(&format!("{front}/{database}"), &url("arena_creator")).await?;
                    continue;
                }
                Neighbour::Listener => {
                    let (url, junk) = (urls.redis.clone(), Arc::clone(&all.junk));
                    tokio::spawn(Listener { url, junk, stop }.run())
                }
            };
            all.tasks.push(task);
        }
        Ok(all)
    }

    /// What is about to be published, as whoever listens in on a producer would know.
    pub(super) fn overhear(&self, intents: &[Intent]) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.extend(
            intents.iter().step_by(OVERHEARD).map(|intent| (intent.tenant.clone(), intent.key.clone())),
        );
        while heard.len() > 50 {
            heard.pop_front();
        }
    }

    /// What they have put into the mirror so far.
    pub(super) fn junk(&self) -> BTreeSet<Vec<u8>> {
        self.junk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends them; returns what they have put into the mirror.
    pub(super) async fn stop(self) -> BTreeSet<Vec<u8>> {
        self.stop.store(true, Ordering::SeqCst);
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        self.junk.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Somebody who may create objects in `public`: functions that fit better than those of PostgreSQL, for whoever has `public` in the
/// `search_path`. They note who ran them.
async fn squat(owner: &str, creator: &str) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(owner).await?;
    sqlx::raw_sql(
        "grant create on schema public to arena_creator;
         grant usage on schema judge to public;
         grant insert on judge.trespasses to public",
    )
    .execute(&mut connection)
    .await?;
    connection.close().await?;
    let mut connection = PgConnection::connect(creator).await?;
    for (name, parameters, result, same) in [
        ("format", "text, text", "text", "pg_catalog.format($1, $2)"),
        ("format", "text, text, text", "text", "pg_catalog.format($1, $2, $3)"),
        ("hashtextextended", "text, integer", "bigint", "pg_catalog.hashtextextended($1, $2)"),
        ("concat", "text, text", "text", "pg_catalog.concat($1, $2)"),
    ] {
        let statement = pg_format(name, parameters, result, same);
        // Names of our own.
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(())
}

fn pg_format(name: &str, parameters: &str, result: &str, same: &str) -> String {
    format!(
        "create function public.{name}({parameters}) returns {result} language plpgsql as $$
         begin
             begin
                 insert into judge.trespasses values (current_user, '{name}');
             exception when others then null;
             end;
             return {same};
         end $$"
    )
}

/// An application of the SQL protocol that claims other consumers' keys before their messages come.
struct Client {
    url: String,
    heard: Arc<Mutex<VecDeque<(String, String)>>>,
    stop: Arc<AtomicBool>,
}

impl Client {
    async fn run(self) {
        let mut random = Rng::with_seed(4);
        while !self.stop.load(Ordering::SeqCst) {
            if let Ok(mut connection) = PgConnection::connect(&self.url).await {
                while !self.stop.load(Ordering::SeqCst) {
                    let next = self.heard.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                    if let Some((tenant, key)) = next
                        && self.claim(&mut connection, &tenant, &key, random.u8(0..4)).await.is_err()
                    {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Fails where the connection is gone; a refusal is what it may get.
    async fn claim(
        &self,
        connection: &mut PgConnection,
        tenant: &str,
        key: &str,
        how: u8,
    ) -> Result<(), sqlx::Error> {
        let statement = match how {
            0 => {
                "do $$ begin perform oncely.claim(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key'), null::bytea); end $$"
            }
            1 => {
                "do $$ begin perform oncely.claim(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key'), null::bytea, interval '170000 years');
                    perform oncely.complete(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key')); end $$"
            }
            2 => {
                "do $$ begin perform oncely.fail(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key'), null::bytea, 1, 'harm', 'poison'); end $$"
            }
            _ => {
                "do $$ begin perform oncely.claim(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key'), sha256('another'));
                    perform oncely.complete(current_setting('neighbour.tenant'), current_setting('neighbour.consumer'),
                    current_setting('neighbour.key'), worker => 'worker-1'); end $$"
            }
        };
        sqlx::query(
            "select set_config('neighbour.tenant', $1, false), set_config('neighbour.consumer', $2, false),
                set_config('neighbour.key', $3, false)",
        )
        .bind(tenant)
        .bind(CONSUMER)
        .bind(key)
        .execute(&mut *connection)
        .await?;
        refused_or_done(sqlx::raw_sql(statement).execute(connection).await)
    }
}

fn refused_or_done<T>(answer: Result<T, sqlx::Error>) -> Result<(), sqlx::Error> {
    match answer {
        Err(sqlx::Error::Database(_)) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

/// An emitter of events that uses the relay to publish what it may not: to a work queue by the default exchange, under another tenant's
/// name, and never, or for ever.
struct Stranger {
    url: String,
    queue: String,
    stop: Arc<AtomicBool>,
}

impl Stranger {
    async fn run(self) {
        let mut number = 0_u64;
        while !self.stop.load(Ordering::SeqCst) {
            if let Ok(mut connection) = PgConnection::connect(&self.url).await {
                while !self.stop.load(Ordering::SeqCst) && self.emit(&mut connection, number).await.is_ok() {
                    number += 1;
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn emit(&self, connection: &mut PgConnection, number: u64) -> Result<(), sqlx::Error> {
        let statement = match number % 3 {
            0 => {
                "select oncely.emit('', $1, '{\"do\": \"work\"}'::jsonb, tenant => 'stranger', message_id => $2,
                    headers => '{\"x-tenant-id\": \"tenant-03\"}'::jsonb)"
            }
            1 => {
                "select oncely.emit('judge.events', $1, '{}'::jsonb, tenant => 'stranger', message_id => $2,
                    delay => interval '170000 years')"
            }
            _ => {
                "select oncely.emit('nowhere', $1, '{}'::jsonb, tenant => 'stranger', message_id => $2,
                    delay => interval '-170000 years')"
            }
        };
        let answer = sqlx::query(statement)
            .bind(&self.queue)
            .bind(format!("forged-{number}"))
            .execute(connection)
            .await;
        refused_or_done(answer)
    }
}

/// Somebody who may write to Redis: sees by MONITOR which tags are asked for, and writes each of them, before its message is done.
struct Listener {
    url: String,
    junk: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
}

impl Listener {
    async fn run(self) {
        while !self.stop.load(Ordering::SeqCst) {
            // Redis may be away.
            let _ = self.listen().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn listen(&self) -> anyhow::Result<()> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut monitor = TcpStream::connect(address(&self.url)?).await?;
        monitor.write_all(b"MONITOR\r\n").await?;
        let mut lines = BufReader::new(monitor);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read =
                tokio::time::timeout(Duration::from_secs(30), lines.read_until(b'\n', &mut line)).await??;
            anyhow::ensure!(read > 0, "the monitor is gone");
            let words = words(&line);
            let asks = matches!(words.first().map(Vec::as_slice), Some(b"HEXISTS" | b"HGET" | b"HMGET"));
            let Some(bucket) = words.get(1).filter(|name| asks && name.starts_with(b"oncely:")) else {
                continue;
            };
            for field in &words[2..] {
                self.junk.lock().unwrap_or_else(PoisonError::into_inner).insert(field.clone());
                // What evidence another field has, or none.
                let taken: Result<Vec<(Vec<u8>, Vec<u8>)>, _> = redis::cmd("HRANDFIELD")
                    .arg(bucket)
                    .arg(1)
                    .arg("WITHVALUES")
                    .query_async(&mut connection)
                    .await;
                let value =
                    taken.ok().and_then(|mut all| all.pop()).map_or_else(Vec::new, |(_, value)| value);
                let set: Result<(), redis::RedisError> =
                    redis::cmd("HSET").arg(bucket).arg(field).arg(value).query_async(&mut connection).await;
                if set.as_ref().is_err_and(redis::RedisError::is_io_error) {
                    anyhow::bail!("Redis is gone");
                }
                tokio::time::sleep(Duration::from_secs(1) / FIELDS).await;
            }
        }
    }
}

/// The words of a line of MONITOR: `+1700000000.0 [0 127.0.0.1:1] "HGET" "name" "\x00field"`.
fn words(line: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = line.iter().copied();
    while bytes.by_ref().any(|byte| byte == b'"') {
        let mut word = Vec::new();
        while let Some(byte) = bytes.next() {
            match byte {
                b'"' => break,
                b'\\' => match bytes.next() {
                    Some(b'x') => {
                        let digits = [bytes.next().unwrap_or(b'0'), bytes.next().unwrap_or(b'0')];
                        let number = std::str::from_utf8(&digits).ok();
                        word.push(number.and_then(|text| u8::from_str_radix(text, 16).ok()).unwrap_or(0));
                    }
                    Some(b'n') => word.push(b'\n'),
                    Some(b'r') => word.push(b'\r'),
                    Some(b't') => word.push(b'\t'),
                    Some(b'a') => word.push(7),
                    Some(b'b') => word.push(8),
                    Some(other) => word.push(other),
                    None => {}
                },
                other => word.push(other),
            }
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_line_of_monitor_is_read_byte_for_byte() {
        let line = br#"+1700000000.1 [0 127.0.0.1:5] "HGET" "oncely:1" "a\x00\"\\\n\xff""#;
        assert_eq!(words(line), [b"HGET".to_vec(), b"oncely:1".to_vec(), b"a\x00\"\\\n\xff".to_vec()]);
    }
}
