//! Finds the master: the Sentinels are queried for each connection, and the server they name must itself report the role of master.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use secrecy::{ExposeSecret as _, SecretString};

use super::connection::{self, NODE_TIMEOUT, RedisConnection, parse_connection_info};
use super::error::MirrorError;
use oncely_config::{MirrorSettings, mask_url};

/// Host and port.
pub(crate) type HostPort = (String, u16);

/// A Sentinel's answer to the query for the address of the master.
#[derive(Debug)]
pub struct SentinelAnswer {
    /// Host and port of the Sentinel; its masked URL if that can't be parsed.
    pub sentinel: String,
    /// Address of the master; `None` if the Sentinel knows no master of this name.
    pub master: Result<Option<HostPort>, MirrorError>,
}

/// Connects to the first server that a Sentinel names and that is a master. All Sentinels are queried at once, so unavailable ones cause
/// no delay.
pub(super) async fn connect_to_master(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let mut answers: FuturesUnordered<_> =
        settings.sentinels.iter().map(|sentinel| query_sentinel(settings, sentinel)).collect();
    let (mut tried_addresses, mut failure): (Vec<HostPort>, Option<MirrorError>) = (Vec::new(), None);
    while let Some(answer) = answers.next().await {
        let address = match answer.master {
            // A Sentinel that was cut off from the others may still name an old master.
            Ok(Some(address)) if tried_addresses.contains(&address) => continue,
            Ok(Some(address)) => address,
            Ok(None) => {
                failure.get_or_insert(MirrorError::UnknownMaster(master_name(settings)?));
                continue;
            }
            Err(error) => {
                failure.get_or_insert(error);
                continue;
            }
        };
        match connection::connect_to_master(settings, &address).await {
            Ok(link) => return Ok(link),
            Err(error) => failure = Some(MirrorError::Master(format_address(&address), Box::new(error))),
        }
        tried_addresses.push(address);
    }
    Err(failure.unwrap_or(MirrorError::Url))
}

/// Returns the Sentinels' name of the master.
fn master_name(settings: &MirrorSettings) -> Result<String, MirrorError> {
    let url = url::Url::parse(settings.url.expose_secret()).map_err(|_| MirrorError::Url)?;
    url.host_str().map(str::to_owned).ok_or(MirrorError::Url)
}

/// Formats host and port; an IPv6 address is in brackets.
pub fn format_address((host, port): &HostPort) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Queries a Sentinel for the address of the master, for up to [`NODE_TIMEOUT`]. Every error is a [`MirrorError::Sentinel`].
pub(super) async fn query_sentinel(settings: &MirrorSettings, url: &SecretString) -> SentinelAnswer {
    let info = parse_connection_info(url).map_err(|error| match error {
        MirrorError::Url => MirrorError::SentinelUrl,
        error => error,
    });
    let sentinel = match &info {
        Ok(info) => info.addr().to_string(),
        Err(_) => mask_url(url),
    };
    let query = async {
        let mut link = RedisConnection::open(info?, settings.sentinel_tls(url)?).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(master_name(settings)?);
        let address = command.query_async::<Option<HostPort>>(&mut link.connection).await?;
        Ok::<_, MirrorError>(address)
    };
    let result = match tokio::time::timeout(NODE_TIMEOUT, query).await {
        Ok(result) => result,
        Err(_) => Err(MirrorError::Budget(NODE_TIMEOUT)),
    };
    let master = result.map_err(|error| MirrorError::Sentinel(sentinel.clone(), Box::new(error)));
    SentinelAnswer { sentinel, master }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_malformed_url_is_an_error_of_its_sentinel_and_shows_no_password() {
        let settings = MirrorSettings::from_url("redis://master".to_owned().into());
        let urls = [
            "redis://:secret@[sentinel",
            "http://:secret@sentinel:26379",
            "redis://:secret@sentinel:26379/first",
        ];
        for url in urls {
            let SentinelAnswer { sentinel, master } =
                query_sentinel(&settings, &SecretString::from(url.to_owned())).await;
            let error = master.unwrap_err();
            assert!(matches!(&error, MirrorError::Sentinel(name, _) if *name == sentinel), "{error}");
            assert_eq!(error.setting(), "redis.sentinels");
            let text = format!("{sentinel}: {error}, {error:?}");
            assert!(!text.contains("secret") && !text.contains("redis.url"), "{text}");
        }
    }
}
