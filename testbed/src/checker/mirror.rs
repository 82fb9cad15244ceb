//! What Redis may hold: recomputed from the committed rows, by the format that the product documents.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{PgConnection, Row as _};

/// A field of a hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name of the hash.
    pub bucket: String,
    /// The field.
    pub field: Vec<u8>,
    /// What stands there.
    pub value: Vec<u8>,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.bucket)?;
        self.field.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads all entries of the mirror.
pub async fn read_entries(url: &str) -> anyhow::Result<Vec<Entry>> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut names = BTreeSet::new();
    let mut cursor = 0_u64;
    loop {
        let (next, some): (u64, Vec<String>) = redis::cmd("SCAN")
            .arg(cursor)
            .arg(&["MATCH", "oncely:*", "COUNT", "2000", "TYPE", "hash"])
            .query_async(&mut connection)
            .await?;
        names.extend(some);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let names: Vec<String> = names.into_iter().collect();
    let mut entries = Vec::new();
    for names in names.chunks(500) {
        let mut pipeline = redis::pipe();
        for name in names {
            pipeline.cmd("HGETALL").arg(name);
        }
        let fields: Vec<Vec<(Vec<u8>, Vec<u8>)>> = pipeline.query_async(&mut connection).await?;
        for (name, fields) in names.iter().zip(fields) {
            let entry = |(field, value)| Entry { bucket: name.clone(), field, value };
            entries.extend(fields.into_iter().map(entry));
        }
    }
    Ok(entries)
}

/// Which of `entries` no committed row explains. Read the entries first: rows are only added.
///
/// A tag is the first 16 bytes of keyed BLAKE3 over epoch, tenant, consumer, key and fingerprint, each behind its length in
/// eight bytes, big-endian; its bucket's number is the first four bytes modulo the buckets, in hexadecimal; its field is the last
/// eight bytes. The value is the first eight bytes of BLAKE3, under another key, over the tag and the bucket's name.
pub async fn find_stale(
    connection: &mut PgConnection,
    key: Option<&str>,
    entries: Vec<Entry>,
) -> anyhow::Result<Vec<Entry>> {
    let (evidence, tags) = compute_tags(connection, key).await?;
    let known: BTreeMap<Vec<u8>, Tag> = tags.into_iter().map(|(tag, _)| (tag[8..].to_vec(), tag)).collect();
    let explained = |entry: &Entry| {
        known
            .get(&entry.field)
            .is_some_and(|tag| is_in_its_bucket(tag, entry) && is_evidence(&evidence, tag, entry))
    };
    Ok(entries.into_iter().filter(|entry| !explained(entry)).collect())
}

/// Finds the completed keys that have no entry.
pub async fn find_missing(
    connection: &mut PgConnection,
    entries: Vec<Entry>,
) -> anyhow::Result<BTreeSet<String>> {
    let mut there: BTreeMap<&[u8], Vec<&Entry>> = BTreeMap::new();
    for entry in &entries {
        there.entry(&entry.field).or_default().push(entry);
    }
    let (evidence, tags) = compute_tags(connection, None).await?;
    let is_there = |tag: &Tag| {
        let found = there.get(&tag[8..]).map_or(&[][..], Vec::as_slice);
        found.iter().any(|entry| is_in_its_bucket(tag, entry) && is_evidence(&evidence, tag, entry))
    };
    Ok(tags.into_iter().filter(|(tag, _)| !is_there(tag)).map(|(_, name)| name).collect())
}

/// A consumer whose keys are only there to make the table large: none of them was ever in a mirror, and they would not fit into memory.
pub const BALLAST: &str = "ballast";

type Tag = [u8; 16];

/// The key of the evidence, and the tags of all completed keys with the keys' names.
async fn compute_tags(
    connection: &mut PgConnection,
    key: Option<&str>,
) -> anyhow::Result<([u8; 32], Vec<(Tag, String)>)> {
    let row = sqlx::query(
        "select oncely.epoch(), s.secret from oncely.secrets as s
         where s.purpose = 'mirror' and s.signs_from <= clock_timestamp()
         order by s.signs_from desc
         limit 1",
    )
    .fetch_one(&mut *connection)
    .await?;
    let (epoch, secret): (String, Vec<u8>) = (row.get(0), row.get(1));
    let secret = key.map_or(secret, |key| key.as_bytes().to_vec());
    let tag_key = blake3::derive_key("oncely 2026-11-20 mirror tag v1", &secret);
    let rows = sqlx::query(
        "select tenant, consumer, key, coalesce(fingerprint, '') from oncely.idempotency_keys
         where status = 'COMPLETED' and consumer <> $1",
    )
    .bind(BALLAST)
    .fetch_all(&mut *connection)
    .await?;
    let tags = rows.iter().map(|row| {
        let (tenant, consumer, key): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let fingerprint: &[u8] = row.get(3);
        let parts = [epoch.as_bytes(), tenant.as_bytes(), consumer.as_bytes(), key.as_bytes(), fingerprint];
        (tag(&tag_key, parts), format!("{tenant}/{key}"))
    });
    Ok((blake3::derive_key("oncely 2026-11-22 mirror evidence v1", &secret), tags.collect()))
}

fn tag(key: &[u8; 32], parts: [&[u8]; 5]) -> Tag {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut tag = [0; 16];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    tag
}

fn is_evidence(key: &[u8; 32], tag: &Tag, entry: &Entry) -> bool {
    let mac = blake3::Hasher::new_keyed(key).update(tag).update(entry.bucket.as_bytes()).finalize();
    entry.value == mac.as_bytes()[..8]
}

/// `oncely:2:<window in milliseconds>:<buckets>:<window>:<bucket>`.
fn is_in_its_bucket(tag: &Tag, entry: &Entry) -> bool {
    let parts: Vec<&str> = entry.bucket.split(':').collect();
    let [_, "2", _, buckets, _, bucket] = parts.as_slice() else { return false };
    let [a, b, c, d, ..] = *tag;
    let buckets = buckets.parse::<u32>().unwrap_or(0);
    buckets > 0 && format!("{:x}", u32::from_be_bytes([a, b, c, d]) % buckets) == *bucket
}
