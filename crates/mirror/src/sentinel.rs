//! Finds the master: the Sentinels are asked for each connection, and the server they name must itself report the role of master.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{ConnectionAddr, FromRedisValue as _, Value};
use secrecy::{ExposeSecret as _, SecretString};

use super::connection::{ANSWER_TIME, RedisConnection, info};
use super::error::MirrorError;
use oncely_config::MirrorSettings;

/// Longest wait for a Sentinel; the others are asked at the same time.
const SENTINEL_TIME: Duration = Duration::from_secs(2);

/// Host and port.
pub(crate) type HostPort = (String, u16);

/// A Sentinel's host and port, and its answer; `None` if it knows no master of this name.
pub(crate) type SentinelAnswer = (String, Result<Option<HostPort>, MirrorError>);

/// Connects to the master. All Sentinels are asked at once, so unavailable ones cause no delay.
pub(super) async fn master(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let mut answers: FuturesUnordered<_> =
        settings.sentinels.iter().map(|sentinel| ask(settings, sentinel)).collect();
    let (mut tried, mut failed): (Vec<HostPort>, Option<MirrorError>) = (Vec::new(), None);
    while let Some((_, answer)) = answers.next().await {
        let place = match answer {
            // A Sentinel that was cut off from the others may still name an old master.
            Ok(Some(place)) if tried.contains(&place) => continue,
            Ok(Some(place)) => place,
            Ok(None) => {
                failed.get_or_insert(MirrorError::UnknownMaster(name(settings)?));
                continue;
            }
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        match connect(settings, &place).await {
            Ok(link) => return Ok(link),
            Err(error) => failed = Some(MirrorError::Master(host_and_port(&place), Box::new(error))),
        }
        tried.push(place);
    }
    Err(failed.unwrap_or(MirrorError::Url))
}

/// Returns the Sentinels' name of the master.
fn name(settings: &MirrorSettings) -> Result<String, MirrorError> {
    let url = url::Url::parse(settings.url.expose_secret()).map_err(|_| MirrorError::Url)?;
    url.host_str().map(str::to_owned).ok_or(MirrorError::Url)
}

pub fn host_and_port((host, port): &HostPort) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

pub(super) async fn ask(settings: &MirrorSettings, sentinel: &SecretString) -> SentinelAnswer {
    let who = match info(sentinel).map(|info| info.addr().to_string()) {
        Ok(who) => who,
        Err(error) => return (String::new(), Err(error)),
    };
    let asked = async {
        let mut link = RedisConnection::to(info(sentinel)?, settings.sentinel_tls(sentinel)?).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name(settings)?);
        let place = command.query_async::<Option<HostPort>>(&mut link.connection).await?;
        Ok::<_, MirrorError>(place)
    };
    let answer = match tokio::time::timeout(SENTINEL_TIME, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(MirrorError::Budget(SENTINEL_TIME)),
    };
    let answer = answer.map_err(|error| MirrorError::Sentinel(who.clone(), Box::new(error)));
    (who, answer)
}

/// Connects and checks the role: an old master that has come back as a replica takes no writes.
async fn connect(settings: &MirrorSettings, (host, port): &HostPort) -> Result<RedisConnection, MirrorError> {
    let info = info(&settings.url)?.set_addr(ConnectionAddr::Tcp(host.clone(), *port));
    let mut link = RedisConnection::to(info, settings.redis_tls()?).await?;
    let command = redis::cmd("ROLE");
    let asked = command.query_async::<Vec<Value>>(&mut link.connection);
    let role = match tokio::time::timeout(ANSWER_TIME, asked).await {
        Ok(role) => role?,
        Err(_) => return Err(MirrorError::Budget(ANSWER_TIME)),
    };
    let role = role.into_iter().next().and_then(|role| String::from_redis_value(role).ok());
    match role.as_deref() {
        Some("master") => Ok(link),
        _ => Err(MirrorError::NoMaster),
    }
}
