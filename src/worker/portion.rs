//! Parts of a batch that PostgreSQL takes at once.

/// Most bytes of bodies in one transaction: all of them are one message to PostgreSQL, and in memory a few times meanwhile.
const PORTION: usize = 16 << 20;

/// Parts of a batch with at most [`PORTION`] bytes each (or one message that is larger), in their order.
pub(crate) fn portions<T>(batch: Vec<T>, size: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut portions: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for one in batch {
        let more = size(&one);
        match portions.last_mut() {
            Some(portion) if bytes + more <= PORTION => portion.push(one),
            _ => {
                bytes = 0;
                portions.push(vec![one]);
            }
        }
        bytes += more;
    }
    portions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_split_where_postgresql_could_not_take_it_at_once() {
        let split = |sizes: &[usize]| portions(sizes.to_vec(), |size| *size);
        assert_eq!(split(&[1, 2, 3]), [vec![1, 2, 3]]);
        assert_eq!(split(&[PORTION, 1, PORTION - 1, 1]), [vec![PORTION], vec![1, PORTION - 1], vec![1]]);
        assert_eq!(split(&[2 * PORTION, 1]), [vec![2 * PORTION], vec![1]]);
        assert_eq!(split(&[]), Vec::<Vec<usize>>::new());
    }
}
