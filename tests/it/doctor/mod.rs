//! `oncely doctor`: each check is seen fine, and seen bad, on real servers.

mod archive;
mod citus;
mod command;
mod database;
mod durability;
mod live;
mod login;
mod rabbitmq;
mod redis;

use std::collections::BTreeSet;
use std::time::Duration;

use oncely::config::{Config, Problems};
use oncely_doctor::{CHECKS, CheckResult, CheckSelection, Limits, Report, Verdict, examine};
use sqlx::AssertSqlSafe;
use testbed::eventually;

use crate::support::World;

/// What makes a check bad, and what mends it.
struct Case {
    /// Statements.
    bad: &'static str,
    check: &'static str,
    verdict: Verdict,
    /// What a finding says.
    says: &'static str,
    /// Statements, after which it is fine.
    mend: &'static str,
}

const fn case(
    bad: &'static str,
    check: &'static str,
    verdict: Verdict,
    says: &'static str,
    mend: &'static str,
) -> Case {
    Case { bad, check, verdict, says, mend }
}

fn only(check: &str, limits: Limits) -> CheckSelection {
    CheckSelection { only: vec![check.to_owned()], limits, ..CheckSelection::default() }
}

/// Everything that the doctor says.
async fn all(config: &Config) -> Report {
    examine(config, &Problems::default(), &CheckSelection::default()).await
}

fn of<'a>(report: &'a Report, check: &str) -> &'a CheckResult {
    let found = report.checks.iter().find(|examined| examined.check.id == check);
    found.unwrap_or_else(|| panic!("{check} is not in the report"))
}

/// Asks until a check says what it must: on a busy machine an answer may take longer than the doctor waits.
async fn says(config: &Config, scope: &CheckSelection, check: &str, verdict: Verdict, part: &str) {
    eventually(&format!("{check} is {verdict:?} and says {part:?}"), || async {
        // It has its own limits; a hang must say where.
        let none = Problems::default();
        let looking = examine(config, &none, scope);
        let Ok(report) = tokio::time::timeout(Duration::from_secs(60), looking).await else {
            return Err("the doctor does not come back".to_owned());
        };
        let examined = of(&report, check);
        let is_said = part.is_empty()
            || examined.findings.iter().any(|f| format!("{}: {}", f.about, f.text).contains(part));
        if examined.verdict == verdict && is_said { Ok(()) } else { Err(format!("{examined:#?}")) }
    })
    .await
    .unwrap();
}

async fn run(world: &mut World, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(&mut world.sql).await.expect(statements);
}

/// Goes through cases, one after the other.
async fn go_through(world: &mut World, cases: &[Case], limits: Limits) {
    let config = world.config();
    for case in cases {
        let scope = only(case.check, limits);
        run(world, case.bad).await;
        says(&config, &scope, case.check, case.verdict, case.says).await;
        if !case.mend.is_empty() {
            run(world, case.mend).await;
            says(&config, &scope, case.check, Verdict::Ok, "").await;
        }
    }
}

/// Checks that can't be fine where all else is, because the tests' login is a superuser, their broker has no HTTP API, and their PostgreSQL
/// makes a checkpoint for each database that is created; other tests see them fine.
const FINE_ELSEWHERE: [&str; 6] =
    ["pg.powers", "mq.version", "mq.policies", "mq.limits", "mq.routes", "pg.wal"];

#[tokio::test]
async fn where_all_is_well_every_check_says_so_or_why_it_can_t_know() {
    let mut world = World::new().await;
    world.with_redis(&world.urls.redis.clone(), "");
    world.consumer("payments", "");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    world.wait_for("select count(*) from oncely.processes", 2).await;
    world.wait_for_line(&worker, "subscribed").await;
    world.wait_for("select count(*) from oncely.maintenance where seal_mark_at is not null", 1).await;
    let config = world.config();
    // In a task of its own, as the relay runs it.
    let report = eventually("all is well", || async {
        let config = config.clone();
        let report = tokio::spawn(async move { oncely_doctor::run(&config).await }).await.unwrap();
        let is_fine = |examined: &&CheckResult| {
            examined.verdict == Verdict::Ok || FINE_ELSEWHERE.contains(&examined.check.id)
        };
        let bad: Vec<_> = report.checks.iter().filter(|examined| !is_fine(examined)).collect();
        if bad.is_empty() { Ok(report) } else { Err(format!("{bad:#?}")) }
    })
    .await
    .unwrap();
    assert_eq!(report.checks.len(), CHECKS.len());
    assert!(report.unreachable.is_empty());
    for check in ["mq.version", "mq.policies", "mq.limits", "mq.routes"] {
        let examined = of(&report, check);
        assert_eq!(examined.verdict, Verdict::Skipped, "{examined:#?}");
        assert!(examined.findings[0].text.contains("rabbitmq.management is not set"), "{examined:#?}");
    }
    assert_eq!(
        (report.count("mq.limits", Verdict::Skipped), report.count("pg.powers", Verdict::Warning)),
        (1, 1)
    );
    // Nothing is fine that has not been looked at.
    for examined in report.checks.iter().filter(|examined| examined.verdict == Verdict::Ok) {
        assert!(!examined.read.is_empty(), "{examined:#?}");
    }
    world.stop(worker).await;
    world.stop(relay).await;
}

#[test]
fn every_check_is_seen_fine_and_seen_bad() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/doctor");
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        text.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let seen = |check: &str, verdicts: &[&str]| {
        verdicts.iter().any(|verdict| text.contains(&format!("\"{check}\", Verdict::{verdict}")))
    };
    let bad: BTreeSet<&str> =
        CHECKS.iter().map(|check| check.id).filter(|id| !seen(id, &["Info", "Warning", "Error"])).collect();
    assert_eq!(bad, BTreeSet::new(), "never seen bad");
    let fine: Vec<&str> = FINE_ELSEWHERE.into_iter().filter(|id| !seen(id, &["Ok"])).collect();
    assert_eq!(fine, Vec::<&str>::new(), "never seen fine");
}
