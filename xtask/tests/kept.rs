//! `cargo xtask demo --keep`, as a person has it: the link is followed, the pages are looked at, Ctrl-C ends it.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use testbed::{Browser, eventually};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// The servers may have to be installed, and the programs to be built.
const START: Duration = Duration::from_secs(900);
/// From Ctrl-C to the end.
const END: Duration = Duration::from_secs(60);

/// A page's text, without its elements.
fn shown(page: &str) -> String {
    page.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text)).collect()
}

/// Waits until a page says all of this.
async fn says(browser: &mut Browser, path: &str, parts: &[&str]) {
    let page = eventually(path, || {
        // Each time as one who does not know the page yet.
        let mut browser = browser.clone();
        async move {
            let answer = browser.get(path).await.map_err(|error| format!("{error:#}"))?;
            let text = shown(&answer.body);
            let missing: Vec<&&str> = parts.iter().filter(|part| !text.contains(**part)).collect();
            match answer.status == 200 && missing.is_empty() {
                true => Ok(()),
                false => Err(format!("{} without {missing:?}: {text}", answer.status)),
            }
        }
    });
    page.await.unwrap();
}

#[tokio::test]
async fn what_is_kept_of_the_demo_is_on_the_consoles_pages_until_ctrl_c() {
    // The servers of another release, where .ci/run wants the demo on them.
    let servers = std::env::var("DEMO_SERVERS").ok();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["demo", "--messages", "500", "--keep"])
        .args(servers.iter().flat_map(|release| ["--servers", release.as_str()]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut told = String::new();
    let reading = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            told.push_str(&line);
            told.push('\n');
            if line.starts_with("export REDIS_URL=") {
                return;
            }
        }
        panic!("it has ended: {told}");
    };
    tokio::time::timeout(START, reading).await.unwrap();
    let word = |part: &str| told.split_whitespace().find(|word| word.contains(part)).unwrap();

    let link = word("/login?token=");
    let mut browser = Browser::follow(link).await.unwrap();
    let operation = word("/failed/operation?id=");
    let operation = &operation[operation.find("/failed/").unwrap()..];
    says(&mut browser, operation, &["Under way.", " of 120", "the accounts are open again", "published"])
        .await;
    let groups =
        ["attempts_exhausted", "account customer:90", "poison", "22P02", "key_conflict", "requeue 120"];
    says(&mut browser, "/failed", &groups).await;
    let paused = ["paused", "the bank is moving its interface", "It continues at"];
    says(&mut browser, "/consumer?name=refunds", &paused).await;
    says(&mut browser, "/outbox?state=parked", &["exchange_missing", "accounting", "Try again now"]).await;
    says(&mut browser, "/keys?q=outcome%3Aduplicate", &["○ duplicate", "usual-0"]).await;
    says(&mut browser, "/", &["payments", "refunds", "● running", "‖ paused"]).await;

    // The link worked once; the page that asks to sign in has another one printed, where a person sees it.
    assert!(Browser::follow(link).await.is_err());
    let another = async {
        loop {
            // Not a moment after the last one.
            browser.post("/login", &[("renew".to_owned(), "1".to_owned())]).await.unwrap();
            let line = tokio::time::timeout(Duration::from_secs(1), lines.next_line()).await;
            if let Ok(line) = line {
                return line.unwrap().unwrap();
            }
        }
    };
    let another = tokio::time::timeout(Duration::from_secs(60), another).await.unwrap();
    Browser::follow(&another).await.unwrap();

    let folder = PathBuf::from(word("ONCELY_CONFIG=").split('=').nth(1).unwrap());
    assert!(folder.exists());
    let pid = rustix::process::Pid::from_raw(i32::try_from(demo.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, testbed::Signal::INT).unwrap();
    let ended = tokio::time::timeout(END, demo.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
    assert!(!Path::exists(&folder), "nothing is left of it");
}
