//! Several hosts of PostgreSQL: which of them accepts writes, and which can't be reached.

use sqlx::Connection as _;

use oncely_config::Config;
use oncely_postgres as pg;
use oncely_process::preflight::CheckFindings;

/// Checks that every host of PostgreSQL answers, and that one of them at most takes writes. Processes need only one, so they don't report a
/// missing one.
pub(super) async fn run_checks(config: &Config, findings: &mut CheckFindings) {
    let hosts: Vec<_> = config.postgres.each_host().collect();
    if hosts.len() < 2 {
        return;
    }
    let mut primaries = Vec::new();
    for host in hosts {
        let is_standby = async {
            let mut connection = host.connect("oncely doctor").await?;
            let is_standby =
                pg::wait_for_answer(host.client_timeout(), pg::is_standby(&mut connection)).await?;
            connection.close().await?;
            Ok::<_, sqlx::Error>(is_standby)
        };
        match is_standby.await {
            Ok(true) => findings.add_read("pg.reach", format!("{}: a standby", host.redacted())),
            Ok(false) => {
                findings.add_read("pg.reach", format!("{}: takes writes", host.redacted()));
                primaries.push(host.redacted());
            }
            Err(error) => {
                let text = format!("{}: {}; the other hosts are used", host.redacted(), pg::describe(&error));
                findings.add_warning("pg.reach", "postgres.url", text);
            }
        }
    }
    if primaries.len() > 1 {
        let text = format!(
            "{} accept writes, all of them: writes to an old primary are lost, and run again; stop all but the new one",
            primaries.join(" and ")
        );
        findings.add_error("pg.reach", "postgres.url", text);
    }
}
