//! The properties of a message as they stand on the wire.

use std::collections::{BTreeMap, BTreeSet};

use super::value::{RawValue, decode_entries, encode_entries, meaning_of};
use super::wire::{Cursor, long, short};

/// Basic properties: flags, then values in this order (AMQP 0-9-1, section 4.2.6.1). Texts may be any bytes, 255 at most.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RawProperties {
    pub content_type: Option<Vec<u8>>,
    pub content_encoding: Option<Vec<u8>>,
    pub headers: Option<Vec<(Vec<u8>, RawValue)>>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<Vec<u8>>,
    pub reply_to: Option<Vec<u8>>,
    pub expiration: Option<Vec<u8>>,
    pub message_id: Option<Vec<u8>>,
    pub timestamp: Option<u64>,
    pub kind: Option<Vec<u8>>,
    pub user_id: Option<Vec<u8>>,
    pub app_id: Option<Vec<u8>>,
    pub cluster_id: Option<Vec<u8>>,
}

/// Persistent, and nothing else.
impl Default for RawProperties {
    fn default() -> Self {
        Self {
            content_type: None,
            content_encoding: None,
            headers: None,
            delivery_mode: Some(2),
            priority: None,
            correlation_id: None,
            reply_to: None,
            expiration: None,
            message_id: None,
            timestamp: None,
            kind: None,
            user_id: None,
            app_id: None,
            cluster_id: None,
        }
    }
}

/// The name of each property that holds text, as in AMQP's documents.
pub(crate) const TEXTS: [&str; 10] = [
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
];

impl RawProperties {
    /// A property that holds text, by its name in AMQP.
    pub fn text_mut(&mut self, name: &str) -> Option<&mut Option<Vec<u8>>> {
        Some(match name {
            "content_type" => &mut self.content_type,
            "content_encoding" => &mut self.content_encoding,
            "correlation_id" => &mut self.correlation_id,
            "reply_to" => &mut self.reply_to,
            "expiration" => &mut self.expiration,
            "message_id" => &mut self.message_id,
            "type" => &mut self.kind,
            "user_id" => &mut self.user_id,
            "app_id" => &mut self.app_id,
            "cluster_id" => &mut self.cluster_id,
            _ => return None,
        })
    }

    /// Without all headers but the first one of each name: RabbitMQ passes no others on from 4.0 on.
    pub(crate) fn keep_first_headers(&mut self) {
        let mut seen = BTreeSet::new();
        if let Some(headers) = &mut self.headers {
            headers.retain(|(name, _)| seen.insert(name.clone()));
        }
    }

    /// The headers by name, each as what it means; see [`RawValue::meaning`].
    #[must_use]
    pub fn headers_by_name(&self) -> BTreeMap<Vec<u8>, RawValue> {
        meaning_of(self.headers.as_deref().unwrap_or_default())
    }

    /// All properties but the headers, by name, numbers in decimal.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&'static str, Vec<u8>> {
        let mut copy = self.clone();
        let mut all: BTreeMap<&'static str, Vec<u8>> =
            TEXTS.into_iter().filter_map(|name| Some((name, copy.text_mut(name)?.take()?))).collect();
        let numbers = [
            ("delivery_mode", self.delivery_mode.map(u64::from)),
            ("priority", self.priority.map(u64::from)),
            ("timestamp", self.timestamp),
        ];
        all.extend(numbers.into_iter().filter_map(|(name, number)| Some((name, number?.to_string().into()))));
        all
    }

    /// As on the wire.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut flags: u16 = 0;
        let mut values = Vec::new();
        let mut present = |bit: u32, is: bool| {
            flags |= u16::from(is) << bit;
        };
        present(15, self.content_type.is_some());
        present(14, self.content_encoding.is_some());
        present(13, self.headers.is_some());
        present(12, self.delivery_mode.is_some());
        present(11, self.priority.is_some());
        present(10, self.correlation_id.is_some());
        present(9, self.reply_to.is_some());
        present(8, self.expiration.is_some());
        present(7, self.message_id.is_some());
        present(6, self.timestamp.is_some());
        present(5, self.kind.is_some());
        present(4, self.user_id.is_some());
        present(3, self.app_id.is_some());
        present(2, self.cluster_id.is_some());
        let text = |to: &mut Vec<u8>, value: &Option<Vec<u8>>| {
            if let Some(bytes) = value {
                short(to, bytes);
            }
        };
        text(&mut values, &self.content_type);
        text(&mut values, &self.content_encoding);
        if let Some(entries) = &self.headers {
            let mut table = Vec::new();
            encode_entries(entries, &mut table);
            long(&mut values, &table);
        }
        values.extend(self.delivery_mode);
        values.extend(self.priority);
        text(&mut values, &self.correlation_id);
        text(&mut values, &self.reply_to);
        text(&mut values, &self.expiration);
        text(&mut values, &self.message_id);
        values.extend(self.timestamp.into_iter().flat_map(u64::to_be_bytes));
        text(&mut values, &self.kind);
        text(&mut values, &self.user_id);
        text(&mut values, &self.app_id);
        text(&mut values, &self.cluster_id);
        let mut encoded = flags.to_be_bytes().to_vec();
        encoded.extend(values);
        encoded
    }

    /// From the wire.
    pub fn decode(bytes: &[u8]) -> anyhow::Result<Self> {
        let mut from = Cursor(bytes);
        let flags = from.number::<2>()?;
        let has = |bit: u32| flags & (1 << bit) != 0;
        let text = |from: &mut Cursor<'_>, bit| -> anyhow::Result<Option<Vec<u8>>> {
            has(bit).then(|| from.short().map(<[u8]>::to_vec)).transpose()
        };
        let byte = |from: &mut Cursor<'_>, bit| -> anyhow::Result<Option<u8>> {
            Ok(if has(bit) { Some(u8::try_from(from.number::<1>()?)?) } else { None })
        };
        let properties = Self {
            content_type: text(&mut from, 15)?,
            content_encoding: text(&mut from, 14)?,
            headers: has(13).then(|| decode_entries(from.long()?)).transpose()?,
            delivery_mode: byte(&mut from, 12)?,
            priority: byte(&mut from, 11)?,
            correlation_id: text(&mut from, 10)?,
            reply_to: text(&mut from, 9)?,
            expiration: text(&mut from, 8)?,
            message_id: text(&mut from, 7)?,
            timestamp: has(6).then(|| from.number::<8>()).transpose()?,
            kind: text(&mut from, 5)?,
            user_id: text(&mut from, 4)?,
            app_id: text(&mut from, 3)?,
            cluster_id: text(&mut from, 2)?,
        };
        anyhow::ensure!(from.is_empty() && flags & 3 == 0, "more properties than AMQP knows");
        Ok(properties)
    }
}
