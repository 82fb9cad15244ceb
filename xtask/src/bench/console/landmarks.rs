//! The rows that pages and verbs look at.

use sqlx::{PgConnection, Row as _};

/// What there is to look at.
#[derive(Debug)]
pub(super) struct Landmarks {
    pub(super) tenant: String,
    pub(super) key: String,
    pub(super) letter: String,
    /// The one with half of all letters.
    pub(super) group: String,
}

impl Landmarks {
    pub(super) async fn find(connection: &mut PgConnection) -> anyhow::Result<Self> {
        let row = sqlx::query(
            "select k.tenant, k.key, l.id::text, l.failure_group
             from (
                 select tenant, key from oncely.idempotency_keys
                 where status = 'COMPLETED' and consumer = 'payments'
                 order by completed_at desc
                 limit 1
             ) as k,
             (
                 select id, failure_group from oncely.dead_letters
                 where state = 'waiting' and reason = 'attempts_exhausted'
                 order by dead_lettered_at desc
                 limit 1
             ) as l",
        )
        .fetch_one(connection)
        .await?;
        Ok(Self { tenant: row.get(0), key: row.get(1), letter: row.get(2), group: row.get(3) })
    }

    /// A page's name for the results: the same from run to run.
    pub(super) fn name(&self, path: &str) -> String {
        let named = path.replace(&self.key, "KEY").replace(&self.letter, "LETTER");
        let mut name = named.replace(&encoded(&self.group), "GROUP").replace(&self.group, "GROUP");
        for place in ["after=", "below=", "before="] {
            if let Some(at) = name.find(place) {
                let end = name[at..].find(['&', ' ']).map_or(name.len(), |length| at + length);
                name.replace_range(at + place.len()..end, "PLACE");
            }
        }
        name
    }
}

/// A value as a query has it.
pub(super) fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(byte).collect()
}
