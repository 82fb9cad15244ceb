//! PostgreSQL: killed, frozen, locked, refusing.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::process::signal_tree;
use super::{Fault, Kind};
use crate::Arena;

const WORKERS: &str = "select pg_terminate_backend(pid) from pg_stat_activity
    where usename in ('arena_worker', 'arena_charging', 'arena_taking', 'arena_gateway', 'arena_observer')";
const CANCEL: &str = "select pg_cancel_backend(pid) from pg_stat_activity
    where usename in ('arena_worker', 'arena_charging', 'arena_taking', 'arena_gateway', 'arena_observer')";
const ALL: &str = "select pg_terminate_backend(pid) from pg_stat_activity where usename like 'arena%'";

impl Arena {
    pub(super) async fn inject_postgres(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillPostgres => return self.postgres()?.kill(),
            Kind::FreezePostgres => {
                let pid = self.postgres()?.pid().context("PostgreSQL does not run")?;
                return signal_tree(pid, Signal::STOP);
            }
            Kind::ShutdownPostgres => {
                let server = self.postgres()?;
                let pid = server.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                kill_process(pid.context("PostgreSQL does not run")?, Signal::INT)?;
                return Ok(());
            }
            Kind::ClockBack => {
                let now = self.moment();
                self.evidence.meanwhile.jumps.push((now, f64::INFINITY));
                self.note_interruption(true);
                return self.age("-3 seconds").await;
            }
            Kind::RevokeGrant | Kind::DropFunction => {
                let now = self.moment();
                self.evidence.meanwhile.breaks.push((now, f64::INFINITY));
            }
            _ => {}
        }
        let mut connection = self.connect().await?;
        match fault.kind {
            Kind::KillBackend => {
                let rows =
                    sqlx::query("select pid from pg_stat_activity where usename like 'arena%' order by pid")
                        .fetch_all(&mut connection)
                        .await?;
                if !rows.is_empty() {
                    let pid: i32 = rows[fault.target % rows.len()].get(0);
                    let pid = Pid::from_raw(pid).context("no process id")?;
                    kill_process(pid, Signal::KILL)?;
                }
            }
            Kind::TerminateBackend => {
                sqlx::query(
                    "select pg_terminate_backend(pid) from pg_stat_activity
                     where usename = 'arena_worker' order by (state = 'idle'), pid limit 1",
                )
                .execute(&mut connection)
                .await?;
            }
            Kind::TerminateBackends => run(&mut connection, ALL).await?,
            Kind::CancelBackends => run(&mut connection, CANCEL).await?,
            Kind::RevokeGrant => {
                run(&mut connection, "revoke insert, update on judge.effects from oncely_worker").await?;
            }
            Kind::LockTable => self.lock("lock table judge.log in exclusive mode", fault.hold),
            Kind::LockKeys => {
                self.lock("lock table oncely.idempotency_keys in share row exclusive mode", fault.hold);
            }
            Kind::NoConnections => {
                limit_sessions(&mut connection, 0).await?;
                run(&mut connection, WORKERS).await?;
            }
            Kind::ReadOnly => {
                let set = "alter role arena_worker set default_transaction_read_only = on";
                run(&mut connection, set).await?;
                run(&mut connection, WORKERS).await?;
            }
            Kind::DropFunction => {
                run(&mut connection, "alter function judge.take(oncely.message) rename to taken").await?;
            }
            Kind::PauseConsumer => {
                run(&mut connection, "select oncely.pause_consumer('faults', null, 'a trial', 'trial')")
                    .await?;
            }
            _ => {}
        }
        // A server that resets itself takes this connection with it.
        let _ = connection.close().await;
        Ok(())
    }

    /// What every handler needs is there again, in a moment.
    fn note_repair(&mut self) {
        let now = self.moment();
        if let Some((_, until)) = self.evidence.meanwhile.breaks.last_mut() {
            *until = now;
        }
    }

    pub(super) async fn heal_postgres(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match fault.kind {
            Kind::KillPostgres | Kind::ShutdownPostgres => return self.postgres()?.restart().await,
            Kind::FreezePostgres => {
                let pid = self.postgres()?.pid().context("PostgreSQL does not run")?;
                return signal_tree(pid, Signal::CONT);
            }
            Kind::ClockBack => {
                self.note_interruption(true);
                self.age("3 seconds").await?;
                let now = self.moment();
                if let Some((_, until)) = self.evidence.meanwhile.jumps.last_mut() {
                    *until = now;
                }
            }
            Kind::RevokeGrant => {
                self.note_repair();
                let grant = "grant select, insert, update on judge.effects to oncely_worker";
                run(&mut self.connect().await?, grant).await?;
            }
            Kind::NoConnections => {
                let mut connection = self.connect().await?;
                limit_sessions(&mut connection, -1).await?;
            }
            Kind::ReadOnly => {
                let mut connection = self.connect().await?;
                let reset = "alter role arena_worker reset default_transaction_read_only";
                run(&mut connection, reset).await?;
                // Sessions that were opened meanwhile keep what they began with.
                run(&mut connection, WORKERS).await?;
            }
            Kind::DropFunction => {
                self.note_repair();
                let back = "alter function judge.taken(oncely.message) rename to take";
                run(&mut self.connect().await?, back).await?;
            }
            Kind::PauseConsumer => {
                run(&mut self.connect().await?, "select oncely.resume_consumer('faults', null, 'trial')")
                    .await?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Holds a lock in the background.
    pub(super) fn lock(&self, statement: &'static str, hold: Duration) {
        let database = self.database().clone();
        tokio::spawn(async move {
            let until = Instant::now() + hold;
            let locked = async {
                let mut connection = database.connect().await?;
                let mut transaction = connection.begin().await?;
                sqlx::query(statement).execute(&mut *transaction).await?;
                tokio::time::sleep_until(until.into()).await;
                transaction.rollback().await?;
                anyhow::Ok(())
            };
            // Where the lock is not to be had, there is no fault this time.
            let _ = locked.await;
        });
    }
}

/// Limits the sessions that programs may have; -1: no limit.
async fn limit_sessions(connection: &mut PgConnection, sessions: i32) -> anyhow::Result<()> {
    for program in ["worker", "charging", "taking", "gateway", "observer"] {
        let limited = format!("alter role arena_{program} connection limit {sessions}");
        // Names and numbers of our own.
        sqlx::query(AssertSqlSafe(limited)).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn run(connection: &mut PgConnection, statement: &'static str) -> anyhow::Result<()> {
    sqlx::query(statement).execute(connection).await?;
    Ok(())
}
