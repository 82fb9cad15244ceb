//! Scripts for what runs under leases, and calls a provider.

use std::time::Duration;

use sqlx::Connection as _;
use testbed::checker::{Order, Side};
use testbed::faults::{Fault, Kind};
use testbed::{Arena, Strike};

/// What happens.
#[derive(Clone, Copy)]
pub(super) enum Script {
    /// A process dies in the middle of its calls.
    Killed,
    /// Copies come while all are well.
    Copies,
    /// A process stands still in the middle of its calls, and others call meanwhile.
    CallsFrozen,
    /// The same, when nothing is left to do but to complete.
    EndsFrozen,
    /// Answers are lost again and again.
    Torn,
    /// PostgreSQL ends the sessions of runs that are in a transaction.
    BrokenOff,
}

/// Longer than a lease, than the broker waits for a heartbeat, and than others need for a takeover.
const STILL: Duration = Duration::from_secs(9);
/// Sessions in which runs have their transactions, of both processes.
const SESSIONS: i64 = 8;

fn orders(name: &str, count: usize, sides: &[Side], tears: u32, delay: u64) -> Vec<Order> {
    let order = |number| Order {
        tenant: "acme".to_owned(),
        key: format!("{name}-{number}"),
        sides: sides.to_vec(),
        tears,
        refusals: 0,
        delay,
    };
    (0..count).map(order).collect()
}

/// Plays a script up to its end: what comes late comes while the runs' books are still open.
pub(super) async fn play(script: Script, arena: &mut Arena) -> anyhow::Result<()> {
    arena.start_charging().await?;
    match script {
        Script::Killed => {
            arena.order(&orders("pay", 24, &[Side::Pay], 0, 2_500));
            arena.strike(Strike::Kill(0)).await?;
        }
        Script::Copies => {
            let all = orders("pay", 12, &[Side::Pay], 0, 4_000);
            (0..3).for_each(|_| arena.order(&all));
        }
        Script::CallsFrozen => {
            arena.order(&orders("mail", 24, &[Side::Mail], 0, 5_000));
            arena.strike(Strike::Freeze(0, STILL)).await?;
        }
        Script::EndsFrozen => {
            // Nobody is called: the strike comes when that has been waited for.
            arena.order(&orders("end", 24, &[], 0, 6_000));
            arena.strike(Strike::Freeze(0, STILL)).await?;
        }
        Script::Torn => {
            let mut all = orders("charge", 3, &[Side::Charge], 6, 1_500);
            all.extend(orders("once", 3, &[Side::Once], 1, 100));
            arena.order(&all);
        }
        Script::BrokenOff => {
            let mut gate = arena.connect().await?;
            let mut shut = gate.begin().await?;
            sqlx::query("lock table judge.reserved in exclusive mode").execute(&mut *shut).await?;
            arena.order(&orders("pay", 24, &[Side::Pay], 0, 100));
            arena.wait_for_sessions(SESSIONS).await?;
            arena.run_fault(&Fault::of(Kind::TerminateBackends)).await?;
            shut.rollback().await?;
        }
    }
    arena.wait_until_charged().await
}
