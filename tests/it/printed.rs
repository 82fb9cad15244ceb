//! What the programs print for people, as it is: `tests/it/snapshots/` holds it, `cargo insta review` (or `INSTA_UPDATE=always`) renews it.

use crate::command_line::{lived_in, stdout};
use crate::support::World;

/// What differs from run to run.
const CHANGING: [(&str, &str); 16] = [
    (r"\d{19}-\d{8}-\d+-[0-9a-f-]{36}", "EPOCH"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "ID"),
    (r"[0-9a-f]{16,64}", "HASH"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?( [+-]\d\d:\d\d|Z)?", "TIME"),
    (r"\b\d{8}\b", "DATE"),
    (r"≈ \d+", "≈ N"),
    (r"\d+ seals over \d+ rows", "N seals over N rows"),
    (r"\d+(\.\d+)? ?(B|kB|MB|GB)\b", "SIZE"),
    (r"\b\d+(\.\d+)? ?(µs|us|ms|s|min|m|hours?|h|days?|d)\b( ?\d+ ?(ms|s|m|min|h)\b)*", "AGE"),
    (r"://\S+@\S+:\d+", "://SERVER"),
    (r"://\S+:\d+", "://SERVER"),
    (r"\S+ \(worker\)", "LOGIN (worker)"),
    (r" \d+\.\d\b", " MS"),
    (r",\d+,worker", ",US,worker"),
    (r" +\n", "\n"),
    (r" {2,}", "  "),
];

async fn printed(world: &World, arguments: &[&str]) -> String {
    let output = world.oncely(arguments).await;
    format!(
        "exit {}\n{}{}",
        output.status.code().unwrap(),
        stdout(&output),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test]
async fn what_people_read_is_what_the_snapshots_show() {
    let mut world = lived_in().await;
    // Nothing is sealed while a transaction runs that was there before it, be it of another test's database; then a day at a time.
    world
        .wait_within(
            std::time::Duration::from_secs(180),
            "select count(*) from oncely.seal_audit() as s
             where coalesce(s.until_time, (select max(until_time) from oncely.audit_seals)) > now() - interval '1 hour'",
            1,
        )
        .await;
    // What the last minute was like depends on how long that took.
    sqlx::query("delete from oncely.stats").execute(&mut world.sql).await.unwrap();
    let mut settings = insta::Settings::clone_current();
    for (pattern, instead) in CHANGING {
        settings.add_filter(pattern, instead);
    }
    settings.set_prepend_module_to_snapshot(false);
    for arguments in [
        &["explain", "order-1"][..],
        &["explain", "never-seen"],
        &["status"],
        &["audit", "list"],
        &["audit", "list", "-o", "csv"],
        &["audit", "verify"],
        &["failed", "list"],
        &["failed", "groups"],
        &["failed", "groups", "-o", "ndjson"],
        &["failed", "requeue", "--all", "--dry-run"],
        &["outbox", "list"],
        &["retention", "list"],
        &["consumers", "list"],
        &["check"],
        &["gc", "run"],
    ] {
        let text = printed(&world, arguments).await;
        settings.bind(|| insta::assert_snapshot!(arguments.join("_"), text));
    }
}
