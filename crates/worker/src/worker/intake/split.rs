//! Parts of a batch that PostgreSQL takes at once.

/// Most bytes of bodies in one transaction: all of them are one message to PostgreSQL, and in memory a few times meanwhile.
const MOST: usize = 16 << 20;

/// Splits a batch into parts of at most [`MOST`] bytes each (or one message that is larger), in their order.
pub(crate) fn split_by_bytes<T>(batch: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut split_by_bytes: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in batch {
        let more = size(&one);
        match split_by_bytes.last_mut() {
            Some(part) if bytes + more <= MOST => part.push(one),
            _ => {
                bytes = 0;
                split_by_bytes.push(vec![one]);
            }
        }
        bytes += more;
    }
    split_by_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_where_postgresql_could_not_take_it_at_once() {
        let split = |sizes: &[usize]| split_by_bytes(sizes.to_vec(), |size| *size);
        assert_eq!(split(&[1, 2, 3]), [vec![1, 2, 3]]);
        assert_eq!(split(&[MOST, 1, MOST - 1, 1]), [vec![MOST], vec![1, MOST - 1], vec![1]]);
        assert_eq!(split(&[2 * MOST, 1]), [vec![2 * MOST], vec![1]]);
        assert_eq!(split(&[]), Vec::<Vec<usize>>::new());
    }
}
