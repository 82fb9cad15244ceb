//! Where the master is: asked of the Sentinels for each connection, and believed only of a server that says that it is one.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{ConnectionAddr, FromRedisValue as _, Value};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::MirrorError;
use super::link::{ANSWER_TIME, Link, info};
use crate::config::MirrorSettings;

/// For what a Sentinel knows; the others are asked meanwhile.
const SENTINEL_TIME: Duration = Duration::from_secs(2);

/// Host and port.
pub(crate) type Place = (String, u16);

/// What a Sentinel says, by its host and port; `None`: it knows no master of this name.
pub(crate) type Said = (String, Result<Option<Place>, MirrorError>);

/// A connection to the master. All of them are asked at once: of those that are away none is waited for.
pub(super) async fn master(settings: &MirrorSettings) -> Result<Link, MirrorError> {
    let mut answers: FuturesUnordered<_> =
        settings.sentinels.iter().map(|sentinel| ask(settings, sentinel)).collect();
    let (mut tried, mut failed): (Vec<Place>, Option<MirrorError>) = (Vec::new(), None);
    while let Some((_, answer)) = answers.next().await {
        let place = match answer {
            // One that was cut off from the others may name an old master still.
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
            Err(error) => failed = Some(MirrorError::Master(shown(&place), Box::new(error))),
        }
        tried.push(place);
    }
    Err(failed.unwrap_or(MirrorError::Url))
}

/// How the Sentinels call the master.
fn name(settings: &MirrorSettings) -> Result<String, MirrorError> {
    let url = url::Url::parse(settings.url.expose_secret()).map_err(|_| MirrorError::Url)?;
    url.host_str().map(str::to_owned).ok_or(MirrorError::Url)
}

pub(crate) fn shown((host, port): &Place) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Asks one.
pub(super) async fn ask(settings: &MirrorSettings, sentinel: &SecretString) -> Said {
    let who = match info(sentinel).map(|info| info.addr().to_string()) {
        Ok(who) => who,
        Err(error) => return (String::new(), Err(error)),
    };
    let asked = async {
        let mut link = Link::to(info(sentinel)?, settings.sentinel_tls(sentinel)?).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name(settings)?);
        let place = command.query_async::<Option<Place>>(&mut link.connection).await?;
        Ok::<_, MirrorError>(place)
    };
    let answer = match tokio::time::timeout(SENTINEL_TIME, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(MirrorError::Budget(SENTINEL_TIME)),
    };
    let answer = answer.map_err(|error| MirrorError::Sentinel(who.clone(), Box::new(error)));
    (who, answer)
}

/// An old master that has come back as a replica takes no writes.
async fn connect(settings: &MirrorSettings, (host, port): &Place) -> Result<Link, MirrorError> {
    let info = info(&settings.url)?.set_addr(ConnectionAddr::Tcp(host.clone(), *port));
    let mut link = Link::to(info, settings.redis_tls()?).await?;
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
