//! Who sits before a console: some read its pages in turn, one follows the trail, one requeues now and then.

use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

use super::Notes;
use super::delays::Delays;
use crate::checker::{FRAGILE, What};
use crate::{Answer, Browser, eventually_within};

/// What is read in turn, beside the page of the consumer.
const PAGES: [&str; 6] = ["/", "/consumers", "/keys", "/failed", "/outbox", "/doctor"];
/// From a page to the next one.
const PAUSE: Duration = Duration::from_secs(1);
/// Nobody waits longer for a page.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the trail is followed, and how long it is not.
const FOLLOWS: Duration = Duration::from_secs(10);
const LOOKS_AWAY: Duration = Duration::from_secs(3);
/// From a requeue to the next one.
const REQUEUES: Duration = Duration::from_secs(6);
/// Letters that a sweep takes along in a second at least.
const SWEPT: u64 = 20;
/// At the end, from the last fault until each page is whole again.
const WHOLE: Duration = Duration::from_secs(20);

/// A console as a browser knows it.
#[derive(Clone, Debug)]
pub(super) struct Desk {
    pub(super) console: String,
    /// Somebody who has come in.
    pub(super) browser: Browser,
    pub(super) consumer: String,
    pub(super) delays: Delays,
    pub(super) notes: Notes,
    pub(super) stop: CancellationToken,
}

impl Desk {
    /// Reads all pages in turn, from one of them on.
    pub(super) async fn read(&self, from: usize) {
        let mut browser = self.browser.clone();
        for path in self.pages().iter().cycle().skip(from) {
            if self.stop.is_cancelled() {
                return;
            }
            self.look(&mut browser, path).await;
            self.pause(PAUSE).await;
        }
    }

    fn pages(&self) -> Vec<String> {
        let consumer = format!("/consumer?name={}", self.consumer);
        PAGES.map(str::to_owned).into_iter().chain([consumer]).collect()
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Looks at a page, and notes what is wrong with it.
    async fn look(&self, browser: &mut Browser, path: &str) -> Option<Answer> {
        let answer = self.measure(path, async {
            let answer = browser.get(path).await?;
            Ok((answer.status, answer))
        });
        let answer = answer.await?;
        let is_clear = match answer.status {
            200 => answer.body.trim_end().ends_with("</html>"),
            304 => true,
            // Whose fault it is stands there: PostgreSQL is away, or somebody holds what is asked for.
            503 => {
                answer.body.contains("PostgreSQL does not answer") || answer.body.contains("Too wide: narrow")
            }
            _ => false,
        };
        if !is_clear {
            self.report(path, &format!("status {}", answer.status));
        }
        Some(answer)
    }

    /// Waits for an answer and notes how long it took, without the time for which the machine kept somebody waiting.
    async fn measure<T>(
        &self,
        path: &str,
        asked: impl Future<Output = anyhow::Result<(u16, T)>>,
    ) -> Option<T> {
        let (begun, before) = (Instant::now(), self.delays.so_far());
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok((status, answer))) => {
                let delays = self.delays.so_far().saturating_sub(before);
                let took = begun.elapsed().saturating_sub(delays);
                self.notes.note(|watched| watched.record_page(status, took, path));
                Some(answer)
            }
            Ok(Err(error)) => {
                self.report(path, &format!("{error:#}"));
                None
            }
            Err(_) => {
                let text = format!("{} {path}: no answer within {PATIENCE:?}", self.console);
                self.notes.report(What::WatcherSlow, text);
                None
            }
        }
    }

    fn report(&self, path: &str, why: &str) {
        self.notes.report(What::WatcherWrong, format!("{} {path}: {why}", self.console));
    }

    /// Follows the trail for a while, again and again.
    pub(super) async fn follow(&self) {
        while !self.stop.is_cancelled() {
            self.follow_once().await;
            self.pause(LOOKS_AWAY).await;
        }
    }

    async fn follow_once(&self) {
        const TAIL: &str = "/keys/tail";
        let opened = self.measure(TAIL, async {
            let mut lines = BufReader::new(self.browser.open("GET", TAIL, &[], "").await?).lines();
            let first = lines.next_line().await?.unwrap_or_default();
            let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
            Ok((status, (status, lines)))
        });
        let Some((status, mut lines)) = opened.await else { return };
        if status != 200 {
            if status != 503 {
                self.report(TAIL, &format!("status {status}"));
            }
            return;
        }
        let followed = async {
            // It ends where PostgreSQL goes away: a browser comes again.
            while let Ok(Some(line)) = lines.next_line().await {
                if line == "event: row" {
                    self.notes.note(|watched| watched.followed += 1);
                }
            }
        };
        tokio::select! {
            () = followed => {}
            () = self.pause(FOLLOWS) => {}
        }
    }

    /// Requeues, now and then, what was given up while a tenant's schema was missing, as the errands do by the command line: what a person
    /// may do at any time, and the judge knows of. What has begun is followed to its end.
    pub(super) async fn operate(&self) {
        let mut browser = self.browser.clone();
        for tenant in FRAGILE.iter().cycle() {
            self.pause(REQUEUES).await;
            if self.stop.is_cancelled() {
                return;
            }
            self.requeue(&mut browser, tenant).await;
        }
    }

    async fn requeue(&self, browser: &mut Browser, tenant: &str) {
        const OPERATE: &str = "/failed/operate";
        let plan = format!("/failed/plan?change=requeue&since=90d&tenant={tenant}&reason=attempts_exhausted");
        let Some(page) = self.look(browser, &plan).await else { return };
        // No form: there is nothing to requeue.
        let (Some(mut fields), Some(count)) = (page.form(OPERATE), page.between(">Type ", " to confirm"))
        else {
            return;
        };
        for (name, value) in [("note", "a trial"), ("rate", "200"), ("typed", count)] {
            fields.push((name.to_owned(), value.to_owned()));
        }
        // What it begins goes on beside it: it may take longer than a page.
        let answer = match tokio::time::timeout(PATIENCE, browser.post(OPERATE, &fields)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return self.report(OPERATE, &format!("{error:#}")),
            Err(_) => return self.report(OPERATE, &format!("no answer within {PATIENCE:?}")),
        };
        match (answer.status, answer.header("location")) {
            (303, Some(operation)) => {
                let letters: u64 = count.parse().unwrap_or(0);
                self.notes.note(|watched| {
                    watched.requeues.0 += 1;
                    watched.requeues.1 += letters;
                });
                self.wait_until_done(browser, operation, letters).await;
            }
            // Others have requeued some meanwhile; or PostgreSQL is away.
            (422 | 503, _) => {}
            (status, _) => self.report(OPERATE, &format!("status {status}")),
        }
    }

    async fn wait_until_done(&self, browser: &mut Browser, operation: &str, letters: u64) {
        let begun = Instant::now();
        // A sweep goes through the whole queue of some thousand copies, sixteen at a time, also while servers are struck.
        let limit = PATIENCE * 6 + Duration::from_secs(letters / SWEPT);
        while begun.elapsed() < limit {
            match self.look(browser, operation).await {
                None => return,
                Some(page) => {
                    let goes_on = ["<b>Under way. </b>", "<b>Sweeping"];
                    if page.status == 200 && !goes_on.iter().any(|said| page.body.contains(said)) {
                        return;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.report(operation, "the requeue does not end");
    }

    /// When all is over each page is whole again, by itself.
    pub(super) async fn look_at_all(&self) {
        for path in self.pages() {
            let mut browser = self.browser.clone();
            let browser = tokio::sync::Mutex::new(&mut browser);
            let whole = eventually_within(WHOLE, &path, || async {
                match browser.lock().await.get(&path).await {
                    Ok(answer) if matches!(answer.status, 200 | 304) => Ok(()),
                    Ok(answer) => Err(answer.status.to_string()),
                    Err(error) => Err(format!("{error:#}")),
                }
            });
            if let Err(error) = whole.await {
                self.report(&path, &format!("{error:#}"));
            }
        }
    }
}
