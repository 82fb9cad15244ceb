//! The lists of the command line: each a process of its own, from its start to its end.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::super::site::Site;
use super::landmarks::Landmarks;

/// Of the whole time there are fewer of these than a list holds, so that it has looked at everything when it ends: by what it promises,
/// it does not stop after a moment as a page does.
const WIDE: [&str; 3] = ["--reason crash", "--tenant tenant-rare", "--tenant nobody"];

/// Does a list look at the whole trail?
pub(super) fn is_wide(verb: &str) -> bool {
    verb.starts_with("audit list") && WIDE.iter().any(|wide| verb.contains(wide))
}

/// What is listed, and its arguments.
pub(super) fn verbs(marks: &Landmarks) -> Vec<Vec<String>> {
    let key = marks.key.as_str();
    let lines: [&[&str]; 24] = [
        &["keys", "list", "--tenant", "tenant-00"],
        &["keys", "list", "--tenant", "tenant-00", "--consumer", "mail"],
        &["keys", "list", "--consumer", "payments", "--status", "completed"],
        &["keys", "list", "--consumer", "payments", "--status", "failed"],
        &["keys", "list", "--consumer", "payments", "--status", "failed", "--tenant", "tenant-rare"],
        &["keys", "list", "--consumer", "payments", "--status", "in-progress"],
        &["keys", "show", key],
        &["audit", "list"],
        &["audit", "list", "--tenant", "tenant-00"],
        &["audit", "list", "--consumer", "mail"],
        &["audit", "list", "--outcome", "retried"],
        &["audit", "list", "--reason", "crash"],
        &["audit", "list", "--tenant", "tenant-rare"],
        &["audit", "list", "--tenant", "nobody", "--since", "7d"],
        &["audit", "list", "--key", key],
        &["failed", "list"],
        &["failed", "list", "--tenant", "tenant-rare"],
        &["failed", "list", "--reason", "crash"],
        &["failed", "list", "--state", "discarded"],
        &["failed", "groups"],
        &["failed", "groups", "--since", "24h"],
        &["status"],
        &["explain", key],
        &["explain", key, "--tenant", marks.tenant.as_str()],
    ];
    lines.iter().map(|line| line.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// Runs one, and tells how long it took.
pub(super) async fn run(site: &Site<'_>, verb: &[String]) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let (oncely, first) = site.stage.command("oncely");
    let output = tokio::process::Command::new(oncely)
        .args(first)
        .args(verb)
        .envs(site.environment())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run oncely")?;
    let took = began.elapsed();
    // Nothing found; something to look at; something to look at now: all of them lists that were shown.
    let shown = matches!(output.status.code(), Some(0 | 1 | 5));
    anyhow::ensure!(shown, "oncely {}: {}", verb.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(took)
}
