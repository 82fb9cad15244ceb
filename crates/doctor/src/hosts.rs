//! Several hosts of PostgreSQL: which of them accepts writes, and which can't be reached.

use sqlx::Connection as _;

use oncely_config::Config;
use oncely_postgres as pg;
use oncely_process::preflight::CheckFindings;

/// Checks every host. Processes need only one, so they don't report a missing one.
pub(super) async fn run_checks(config: &Config, found: &mut CheckFindings) {
    let hosts: Vec<_> = config.postgres.each_host().collect();
    if hosts.len() < 2 {
        return;
    }
    let mut primaries = Vec::new();
    for host in hosts {
        let is_standby = async {
            let mut connection = host.connect("oncely doctor").await?;
            let is_standby = pg::within(host.client_timeout(), pg::is_standby(&mut connection)).await?;
            connection.close().await?;
            Ok::<_, sqlx::Error>(is_standby)
        };
        match is_standby.await {
            Ok(true) => found.add_read("pg.reach", format!("{}: a standby", host.shown())),
            Ok(false) => {
                found.add_read("pg.reach", format!("{}: takes writes", host.shown()));
                primaries.push(host.shown());
            }
            Err(error) => {
                let what = format!("{}: {}; the other hosts are used", host.shown(), pg::describe(&error));
                found.warning("pg.reach", "postgres.url", what);
            }
        }
    }
    if primaries.len() > 1 {
        let what = format!(
            "{} accept writes, all of them: writes to an old primary are lost, and run again; stop all but the new one",
            primaries.join(" and ")
        );
        found.error("pg.reach", "postgres.url", what);
    }
}
