//! Free ports below the ephemeral range.
//!
//! Inside that range (32768 and up on Linux) an outgoing connection may take a server's port between its kill and its
//! restart.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port on the loopback that nothing listened on a moment ago.
///
/// # Errors
/// When all of them are taken.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Each process starts elsewhere, so that two test runs at once seldom ask for the same port.
    let base = u16::try_from(std::process::id() % u32::from(COUNT)).unwrap_or(0);
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = FIRST + (base.wrapping_mul(7) % COUNT + step) % COUNT;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}
