//! Finds the master: the Sentinels are queried for each connection, and the server they name must itself report the role of master.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{ConnectionAddr, FromRedisValue as _, Value};
use secrecy::{ExposeSecret as _, SecretString};

use super::connection::{RESPONSE_TIMEOUT, RedisConnection, parse_connection_info};
use super::error::MirrorError;
use oncely_config::MirrorSettings;

/// Maximum wait for a Sentinel; the others are queried at the same time.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Host and port.
pub(crate) type HostPort = (String, u16);

/// A Sentinel's host and port, and the address of the master that it names; `None` if it knows no master of this name.
pub(crate) type SentinelResult = (String, Result<Option<HostPort>, MirrorError>);

/// Connects to the first server that a Sentinel names and that is a master. All Sentinels are queried at once, so unavailable ones cause
/// no delay.
pub(super) async fn connect_to_master(settings: &MirrorSettings) -> Result<RedisConnection, MirrorError> {
    let mut results: FuturesUnordered<_> =
        settings.sentinels.iter().map(|sentinel| query_sentinel(settings, sentinel)).collect();
    let (mut tried_addresses, mut failure): (Vec<HostPort>, Option<MirrorError>) = (Vec::new(), None);
    while let Some((_, result)) = results.next().await {
        let address = match result {
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
        match connect(settings, &address).await {
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

/// Queries a Sentinel for the address of the master. Waits up to [`SENTINEL_TIMEOUT`].
pub(super) async fn query_sentinel(settings: &MirrorSettings, sentinel: &SecretString) -> SentinelResult {
    let name = match parse_connection_info(sentinel).map(|info| info.addr().to_string()) {
        Ok(name) => name,
        Err(error) => return (String::new(), Err(error)),
    };
    let query = async {
        let mut link =
            RedisConnection::open(parse_connection_info(sentinel)?, settings.sentinel_tls(sentinel)?).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(master_name(settings)?);
        let address = command.query_async::<Option<HostPort>>(&mut link.connection).await?;
        Ok::<_, MirrorError>(address)
    };
    let result = match tokio::time::timeout(SENTINEL_TIMEOUT, query).await {
        Ok(result) => result,
        Err(_) => Err(MirrorError::Budget(SENTINEL_TIMEOUT)),
    };
    let result = result.map_err(|error| MirrorError::Sentinel(name.clone(), Box::new(error)));
    (name, result)
}

/// Connects and checks the role: an old master that has come back as a replica takes no writes.
async fn connect(settings: &MirrorSettings, (host, port): &HostPort) -> Result<RedisConnection, MirrorError> {
    let info = parse_connection_info(&settings.url)?.set_addr(ConnectionAddr::Tcp(host.clone(), *port));
    let mut link = RedisConnection::open(info, settings.redis_tls()?).await?;
    let command = redis::cmd("ROLE");
    let request = command.query_async::<Vec<Value>>(&mut link.connection);
    let role = match tokio::time::timeout(RESPONSE_TIMEOUT, request).await {
        Ok(role) => role?,
        Err(_) => return Err(MirrorError::Budget(RESPONSE_TIMEOUT)),
    };
    let role = role.into_iter().next().and_then(|role| String::from_redis_value(role).ok());
    match role.as_deref() {
        Some("master") => Ok(link),
        _ => Err(MirrorError::NoMaster),
    }
}
