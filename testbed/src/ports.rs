//! Free ports below the ephemeral range.
//!
//! Inside that range (32768 and up on Linux) an outgoing connection may take a server's port between its kill and its
//! restart.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Names the variable in which nextest numbers the tests that run at the same time.
const SLOT: &str = "NEXTEST_TEST_GLOBAL_SLOT";
/// Ports of one of them: a port is not taken yet when it is given to a server that is about to start.
const PER_SLOT: u16 = 250;

/// A port on the loopback that nothing listened on a moment ago.
///
/// # Errors
/// When all of them are taken.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let slot = std::env::var(SLOT).ok().and_then(|slot| slot.parse::<u16>().ok());
    let (first, count) = match slot.filter(|slot| *slot < COUNT / PER_SLOT) {
        Some(slot) => (FIRST + slot * PER_SLOT, PER_SLOT),
        None => (FIRST, COUNT),
    };
    // Each process starts elsewhere, so that two test runs at once seldom ask for the same port.
    let base = u16::try_from(std::process::id().wrapping_mul(7) % u32::from(count)).unwrap_or(0);
    for _ in 0..count {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % count;
        let port = first + (base + step) % count;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    anyhow::bail!("no free port between {first} and {}", first + count)
}
