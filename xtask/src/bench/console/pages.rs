//! Every page of the console over a big database: how long each takes, and whether it reads a table as a whole.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use sqlx::PgConnection;

use super::super::case::find;
use super::super::job::{Handler, Job, Ours, QueueType};
use super::super::outcome::{Outcome, rounded};
use super::super::round::Rounds;
use super::super::site::{Member, Site};
use super::super::stats::percentile;
use super::browser::{Answer, Browser};
use super::landmarks::{Landmarks, encoded};
use super::scans::Scans;
use super::verbs;

/// Keys beside those of dead letters, a fifth of the trail; letters are a hundredth.
const KEYS_IN: u64 = 5;
/// Requests of each page, and runs of each verb.
const REQUESTS: u64 = 20;
const MAX_MS: f64 = 300.0;
/// What a console knows is good for three seconds: one that is asked later asks PostgreSQL anew, as a page that is looked at does every five.
const REST: Duration = Duration::from_millis(3_100);
/// They are asked in turn, so that nobody has to wait for that.
const CONSOLES: usize = 12;
/// For the pages of other ranges and filters than the first.
const CONSUMERS: &[&str] = &["ledger", "mail"];

/// A page, and what counts of it.
#[derive(Debug)]
struct Page {
    path: String,
    /// A file is as long as it is: its first byte counts.
    is_file: bool,
}

/// How long the pages take with so many rows in the trail.
pub(crate) async fn pages(rounds: &Rounds<'_>, rows: u64) -> anyhow::Result<Vec<Outcome>> {
    const NAME: &str = "console_5m";
    rounds.say(NAME, 0);
    let job = Job::ours(Ours::full(Handler::Batch), QueueType::Classic, rounds.messages);
    let mut site = Site::prepare(rounds.stage, &job).await?;
    site.add_consumers(CONSUMERS).await?;
    let mut watch = site.connect().await?;
    fill(&mut watch, rows).await?;
    let marks = Landmarks::find(&mut watch).await?;

    let mut consoles = Vec::new();
    for _ in 0..CONSOLES {
        consoles.push(Console::start(&mut site).await?);
    }
    let pages = all(&consoles[0].browser, &marks).await?;
    let verbs = verbs::verbs(&marks);
    let (scans, firsts) = measure_scans(&site, &mut watch, &mut consoles[0].browser, &pages, &verbs).await?;
    let pages_ms = measure_times(&mut consoles, &pages, rounds).await?;
    let mut verbs_ms = BTreeMap::new();
    for round in 0..REQUESTS {
        // Those that take seconds are no matter of a percentile.
        for verb in verbs.iter().filter(|verb| round == 0 || !verbs::is_wide(&verb.join(" "))) {
            let took = verbs::run(&site, verb).await?;
            verbs_ms.entry(marks.name(&verb.join(" "))).or_insert_with(Vec::new).push(millis(took));
        }
    }
    for console in consoles {
        console.end().await?;
    }
    site.clear().await?;

    let pages_ms = p95(pages_ms.into_iter().map(|(path, times)| (marks.name(&path), times)));
    let (wide_ms, verbs_ms): (BTreeMap<_, _>, BTreeMap<_, _>) =
        p95(verbs_ms).into_iter().partition(|(verb, _)| verbs::is_wide(verb));
    let worst = |of: &BTreeMap<String, f64>| of.values().copied().fold(0.0, f64::max);
    let (page, verb) = (worst(&pages_ms), worst(&verbs_ms));
    let outcome = find(NAME).map(|case| {
        Outcome::new(case, vec![page])
            .unless(!scans.is_empty(), || format!("{} pages or verbs read a table as a whole", scans.len()))
            .unless(verb > MAX_MS, || format!("a verb takes {verb:.0} ms"))
            .note("rows", json!(rows))
            .note("pages_p95_ms", object(&pages_ms))
            .note(
                "pages_first_ms",
                object(&firsts.into_iter().map(|(path, ms)| (marks.name(&path), ms)).collect()),
            )
            .note("verbs_p95_ms", object(&verbs_ms))
            .note("whole_trail_ms", object(&wide_ms))
            .note("worst_verb_p95_ms", json!(rounded(verb)))
            .note("sequential_scans", json!(scans.iter().map(|scan| marks.name(scan)).collect::<Vec<_>>()))
    });
    Ok(outcome.into_iter().collect())
}

async fn fill(connection: &mut PgConnection, rows: u64) -> anyhow::Result<()> {
    sqlx::query(
        "select set_config('bench.trail', $1::text, false), set_config('bench.keys', $2::text, false)",
    )
    .bind(i64::try_from(rows)?)
    .bind(i64::try_from(rows / KEYS_IN)?)
    .execute(&mut *connection)
    .await?;
    sqlx::raw_sql(include_str!("fill.sql")).execute(&mut *connection).await?;
    // What autovacuum would have done by the time that so many have come.
    sqlx::raw_sql("vacuum analyze").execute(&mut *connection).await?;
    sqlx::raw_sql("checkpoint").execute(&mut *connection).await?;
    Ok(())
}

/// A console of its own process, and somebody who looks at it.
#[derive(Debug)]
pub(super) struct Console {
    pub(super) member: Member,
    pub(super) browser: Browser,
    asked: Option<Instant>,
}

impl Console {
    pub(super) async fn start(site: &mut Site<'_>) -> anyhow::Result<Self> {
        let member = site.member("console", "oncely", &["console", "--listen", "127.0.0.1:0"])?;
        let browser = Browser::come_in(&member.process).await?;
        Ok(Self { member, browser, asked: None })
    }

    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        let status = self.member.process.terminate(Duration::from_secs(20)).await?;
        anyhow::ensure!(status.success(), "console: {status}\n{}", self.member.process.output());
        Ok(())
    }
}

/// All pages and lists, with each of their filters, and what comes behind their first ones.
async fn all(browser: &Browser, marks: &Landmarks) -> anyhow::Result<Vec<Page>> {
    let (key, letter, group) = (&marks.key, &marks.letter, encoded(&marks.group));
    let mut paths: Vec<String> = Vec::new();
    paths.extend(["15m", "1h", "6h", "24h", "7d"].map(|range| format!("/?range={range}")));
    paths.extend(["", "&range=7d"].map(|more| format!("/consumer?name=payments{more}")));
    paths.extend(
        ["/consumers", "/outbox", "/outbox?state=parked", "/outbox?range=7d", "/doctor"].map(str::to_owned),
    );
    let searches = [
        "",
        "tenant:tenant-00",
        "consumer:mail",
        "outcome:retried",
        "outcome:refused consumer:mail since:30d",
        "reason:crash since:30d",
        "worker:worker-1",
        "tenant:tenant-rare",
        "tenant:tenant-rare since:30d",
        "tenant:nobody since:7d",
        "tenant:nobody since:30d",
        "since:15m",
        key,
    ];
    paths.extend(searches.map(|search| format!("/keys?q={}", encoded(search))));
    paths.extend([
        format!("/key?key={key}"),
        format!("/key?key={key}&tenant={}", marks.tenant),
        format!("/key?key={key}&tenant={}&consumer=payments", marks.tenant),
        "/key?key=unknown".to_owned(),
    ]);
    let wishes = [
        String::new(),
        "since=24h".to_owned(),
        "since=90d".to_owned(),
        "since=90d&tenant=tenant-rare".to_owned(),
        "since=90d&consumer=mail".to_owned(),
        "since=90d&reason=crash".to_owned(),
        format!("since=90d&group={group}"),
    ];
    for page in ["/failed", "/failed/letters"] {
        paths.extend(wishes.iter().map(|wish| format!("{page}?{wish}")));
    }
    paths.extend(
        ["state=requeued", "state=discarded", "state=any", "state=requeueing", "since=90d&state=any"]
            .map(|state| format!("/failed/letters?{state}")),
    );
    paths.push(format!("/failed/letters?key={key}"));
    paths.push(format!("/failed/letter?id={letter}"));
    for change in ["requeue", "discard"] {
        paths.push(format!("/failed/plan?change={change}&since=90d&group={group}"));
        paths.push(format!("/failed/plan?change={change}&id={letter}"));
    }
    paths.push("/failed/plan?change=discard&since=24h&consumer=mail&reason=handler_rejected".to_owned());
    // What comes behind them, as their links say.
    for first in [
        "/keys?q=",
        "/keys?q=consumer%3Amail",
        "/keys?q=tenant%3Anobody%20since%3A30d",
        "/failed/letters?since=90d",
    ] {
        paths.extend(get_page(browser, first).await?.link("older"));
    }
    let files = ["csv", "ndjson"].map(|kind| format!("/keys/export.{kind}?q=since%3A30d"));
    let page = |is_file: bool| move |path: String| Page { path, is_file };
    Ok(paths.into_iter().map(page(false)).chain(files.into_iter().map(page(true))).collect())
}

async fn get_page(browser: &Browser, path: &str) -> anyhow::Result<Answer> {
    let answer = browser.get(path).await?;
    anyhow::ensure!(answer.status == 200, "{path}: {}\n{}", answer.status, answer.body);
    Ok(answer)
}

fn answer_millis(page: &Page, answer: &Answer) -> f64 {
    millis(if page.is_file { answer.first_byte } else { answer.whole })
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

/// Looks at each page once, with sessions that were never used before: what it scans, and how long that takes.
async fn measure_scans(
    site: &Site<'_>,
    watch: &mut PgConnection,
    browser: &mut Browser,
    pages: &[Page],
    verbs: &[Vec<String>],
) -> anyhow::Result<(Vec<String>, BTreeMap<String, f64>)> {
    let (mut found, mut firsts) = (Vec::new(), BTreeMap::new());
    let mut before = Scans::read(watch).await?;
    let mut tell = |what: &str, scans: &Scans, before: &mut Scans| {
        found.extend(
            scans.since(before).into_iter().map(|(table, rows)| format!("{what}: {rows} rows of {table}")),
        );
        before.clone_from(scans);
    };
    for page in pages {
        let rested = Instant::now();
        let answer = get_page(browser, &page.path).await?;
        firsts.insert(page.path.clone(), answer_millis(page, &answer));
        tell(&page.path, &Scans::read(watch).await?, &mut before);
        tokio::time::sleep(REST.saturating_sub(rested.elapsed())).await;
    }
    for verb in verbs {
        verbs::run(site, verb).await?;
        tell(&format!("oncely {}", verb.join(" ")), &Scans::read(watch).await?, &mut before);
    }
    Ok((found, firsts))
}

/// Looks at all pages again and again, each time at a console that has rested.
async fn measure_times(
    consoles: &mut [Console],
    pages: &[Page],
    rounds: &Rounds<'_>,
) -> anyhow::Result<BTreeMap<String, Vec<f64>>> {
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut turn = (0..consoles.len()).cycle();
    for _ in 0..REQUESTS {
        rounds.bar.tick();
        for page in pages {
            let Some(console) = turn.next().and_then(|next| consoles.get_mut(next)) else { continue };
            if let Some(asked) = console.asked {
                tokio::time::sleep(REST.saturating_sub(asked.elapsed())).await;
            }
            let answer = get_page(&console.browser, &page.path).await?;
            console.asked = Some(Instant::now());
            times.entry(page.path.clone()).or_default().push(answer_millis(page, &answer));
        }
        // Another console for each page in the next round.
        turn.next();
    }
    Ok(times)
}

fn p95(times: impl IntoIterator<Item = (String, Vec<f64>)>) -> BTreeMap<String, f64> {
    times.into_iter().map(|(name, times)| (name, percentile(&times, 0.95))).collect()
}

fn object(figures: &BTreeMap<String, f64>) -> Value {
    let figures = figures.iter().map(|(name, value)| (name.clone(), json!(rounded(*value))));
    Value::Object(figures.collect::<Map<_, _>>())
}
