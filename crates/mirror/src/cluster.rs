//! Finds the servers of a Redis Cluster: each key has a slot, each slot a master, and each node knows the masters of all slots.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use redis::{ConnectionAddr, FromRedisValue as _, Value};

use super::connection::{NODE_TIMEOUT, RedisConnection, connect_to_master, parse_connection_info};
use super::error::MirrorError;
use super::info::parse_info;
use super::sentinel::{HostPort, format_address};
use oncely_config::MirrorSettings;

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;

/// Computes the slot of a key: the CRC of the part in its first braces, or of all of it (Redis Cluster specification, "Hash tags").
pub(super) fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// Computes CRC-16/XMODEM: polynomial 0x1021, from 0, not reflected.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

/// The masters of all slots, as a node knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotMap(Vec<(u16, u16, HostPort)>);

impl SlotMap {
    /// Returns the address of the master of a slot; `None` if none serves it.
    pub(super) fn master_of(&self, slot: u16) -> Option<&HostPort> {
        self.0.iter().find(|(first, last, _)| (*first..=*last).contains(&slot)).map(|(_, _, master)| master)
    }

    /// Returns the addresses of all masters.
    pub(super) fn masters(&self) -> impl Iterator<Item = &HostPort> {
        self.0.iter().map(|(_, _, master)| master)
    }

    /// Counts the slots that have a master.
    fn count_served(&self) -> u32 {
        self.0.iter().map(|(first, last, _)| u32::from(last.saturating_sub(*first)) + 1).sum()
    }

    /// Parses the answer to `CLUSTER SLOTS`. A node that does not know its own address leaves it empty: then it is the one that was asked.
    fn parse(answer: &Value, asked: &HostPort) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let ranges = ranges.iter().map(|range| {
            let Value::Array(parts) = range else { return None };
            let [first, last, master, ..] = parts.as_slice() else { return None };
            let Value::Array(master) = master else { return None };
            let [host, port, ..] = master.as_slice() else { return None };
            let host = String::from_redis_value_ref(host).ok().filter(|host| !host.is_empty());
            Some((
                u16::from_redis_value_ref(first).ok()?,
                u16::from_redis_value_ref(last).ok()?,
                (host.unwrap_or_else(|| asked.0.clone()), u16::from_redis_value_ref(port).ok()?),
            ))
        });
        ranges.collect::<Option<Vec<_>>>().map(Self)
    }
}

/// Asks the configured nodes and those of `known` for the masters of all slots, all at once. The first answer with all slots counts, else
/// the one with most: a node that has lost its configuration knows none.
pub(super) async fn read_slots(
    settings: &MirrorSettings,
    known: Option<&SlotMap>,
) -> Result<SlotMap, MirrorError> {
    let mut nodes: Vec<HostPort> = Vec::new();
    for url in settings.node_urls() {
        if let ConnectionAddr::Tcp(host, port) = parse_connection_info(url)?.addr() {
            nodes.push((host.clone(), *port));
        }
    }
    nodes.extend(known.into_iter().flat_map(SlotMap::masters).cloned());
    nodes.sort_unstable();
    nodes.dedup();
    let mut answers: FuturesUnordered<_> = nodes.iter().map(|node| ask_node(settings, node)).collect();
    let (mut best, mut failure) = (SlotMap(Vec::new()), MirrorError::Slots);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(slots) if slots.count_served() == u32::from(SLOTS) => return Ok(slots),
            Ok(slots) if slots.count_served() > best.count_served() => best = slots,
            Ok(_) => {}
            Err(error) => failure = error,
        }
    }
    if best.0.is_empty() { Err(failure) } else { Ok(best) }
}

/// Asks a node for the masters of all slots, for up to [`NODE_TIMEOUT`]. A master that has lost sight of the others still names itself, but
/// says that the cluster is down. A server without cluster mode has all slots: checks of its INFO report it.
async fn ask_node(settings: &MirrorSettings, node: &HostPort) -> Result<SlotMap, MirrorError> {
    let query = async {
        let (host, port) = node.clone();
        let info = parse_connection_info(&settings.url)?.set_addr(ConnectionAddr::Tcp(host, port));
        let mut link = RedisConnection::open(info, settings.redis_tls()?).await?;
        let connection = &mut link.connection;
        match redis::cmd("CLUSTER").arg("INFO").query_async::<String>(connection).await {
            Ok(state) if state.lines().any(|line| line.trim_end() == "cluster_state:ok") => {}
            Ok(_) => return Err(MirrorError::ClusterDown),
            Err(error) => {
                return match redis::cmd("INFO").query_async::<String>(connection).await {
                    Ok(info) if !parse_info(&info).is_cluster => {
                        Ok(SlotMap(vec![(0, SLOTS - 1, node.clone())]))
                    }
                    _ => Err(error.into()),
                };
            }
        }
        let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(connection).await?;
        SlotMap::parse(&answer, node).ok_or(MirrorError::Slots)
    };
    let result = match tokio::time::timeout(NODE_TIMEOUT, query).await {
        Ok(result) => result,
        Err(_) => Err(MirrorError::Budget(NODE_TIMEOUT)),
    };
    result.map_err(|error| MirrorError::Node(format_address(node), Box::new(error)))
}

/// Connects to the master of a slot.
pub(super) async fn connect_to_slot(
    settings: &MirrorSettings,
    slot: u16,
) -> Result<RedisConnection, MirrorError> {
    let slots = read_slots(settings, None).await?;
    let master = slots.master_of(slot).ok_or(MirrorError::UnservedSlot(slot))?;
    connect_to_master(settings, master)
        .await
        .map_err(|error| MirrorError::Master(format_address(master), Box::new(error)))
}

/// Returns whether a command was not executed because its key is, or may be, on another server.
pub(super) fn is_redirection(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "CLUSTERDOWN" | "TRYAGAIN"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The reference value of CRC-16/XMODEM, and slots that a server computes (CLUSTER KEYSLOT).
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12_182);
        assert_eq!(slot_of("oncely:2:{foo}:1"), 12_182);
        assert_eq!(slot_of("foo{}{bar}"), 8_363, "empty braces are no tag");
        assert_eq!(slot_of("foo{{bar}}zap"), 4_015, "the tag is {{bar");
        assert_eq!(slot_of("foo{bar}{zap}"), 5_061, "the first braces count");
    }

    #[test]
    fn a_node_that_does_not_know_its_address_is_the_one_that_was_asked() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |first, last, host| {
            let master = Value::Array(vec![host, Value::Int(7), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master])
        };
        let answer = Value::Array(vec![range(0, 8_191, text("")), range(8_192, 16_383, text("b"))]);
        let slots = SlotMap::parse(&answer, &("a".to_owned(), 1)).unwrap();
        assert_eq!(slots.master_of(0), Some(&("a".to_owned(), 7)));
        assert_eq!(slots.master_of(16_383), Some(&("b".to_owned(), 7)));
        assert_eq!(slots.count_served(), 16_384);
        assert_eq!(SlotMap::parse(&Value::Okay, &("a".to_owned(), 1)), None);
    }
}
