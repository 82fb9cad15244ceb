//! Strings of the wire, written and read.

use anyhow::Context as _;

/// A short string: one byte of length; what is beyond 255 bytes is cut.
pub(super) fn short(to: &mut Vec<u8>, bytes: &[u8]) {
    to.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    to.extend(bytes.iter().take(255));
}

/// A long string: four bytes of length.
pub(super) fn long(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    to.extend(bytes);
}

/// Bytes that are read from their front.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, count: usize) -> anyhow::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).context("the bytes end too early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn number<const N: usize>(&mut self) -> anyhow::Result<u64> {
        Ok(self.take(N)?.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte)))
    }

    pub(super) fn short(&mut self) -> anyhow::Result<&'a [u8]> {
        let length = self.number::<1>()?;
        self.take(usize::try_from(length)?)
    }

    pub(super) fn long(&mut self) -> anyhow::Result<&'a [u8]> {
        let length = self.number::<4>()?;
        self.take(usize::try_from(length)?)
    }
}
