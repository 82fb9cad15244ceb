//! A short digest of the rows that were shown: a form carries it, and it changes with the set of rows.

use uuid::Uuid;

/// Returns the digest of (tenant, id, generation), in the order of the rows.
pub(crate) fn compute_digest<'a>(rows: impl Iterator<Item = (&'a str, Uuid, i32)>) -> String {
    let mut hasher = blake3::Hasher::new();
    for (tenant, id, generation) in rows {
        hasher.update(&u64::try_from(tenant.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(tenant.as_bytes()).update(id.as_bytes()).update(&generation.to_le_bytes());
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_tenant_row_life_or_order_is_another_set() {
        let (a, b) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let of = |rows: &[(&str, Uuid, i32)]| compute_digest(rows.iter().copied());
        let first = of(&[("acme", a, 1), ("acme", b, 1)]);
        assert_eq!(first, of(&[("acme", a, 1), ("acme", b, 1)]));
        for other in [
            &[("acme", b, 1), ("acme", a, 1)][..],
            &[("acme", a, 1), ("acme", b, 2)],
            &[("acme", a, 1), ("globex", b, 1)],
            &[("acme", a, 1)],
        ] {
            assert_ne!(first, of(other));
        }
    }
}
