//! A bad day, for whoever looks at the console: brought about on the demo's own processes, by messages, SQL, the command line and the
//! console's own forms, as it happens elsewhere.

use std::time::Duration;

use anyhow::Context as _;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sqlx::Connection as _;
use testbed::checker::{Act, Intent};
use testbed::{Arena, Browser, Process, eventually};

/// Payments of accounts that are closed; requeued one a second: two minutes.
const CLOSED: u32 = 120;
/// Payments whose amount is no whole number.
const WRONG: u32 = 5;
/// Payments like any other, each fourth of them twice.
const USUAL: u32 = 400;
/// Payments like any other that come every quarter of a second while others fail: some for each worker.
const STEADY: u32 = 4;
/// What waits where somebody has paused.
const REFUNDS: u32 = 12;

/// A second consumer, to be paused; and events that are given up soon.
const MORE: &str = r#"
[events]
retry = { delays = ["200ms"], max_attempts = 2 }

[[consumers]]
name = "refunds"
queue = "QUEUE"
tenant = { header = "x-tenant-id" }
key = { property = "message_id" }
handler = { function = "judge.take" }
retry = { delays = ["200ms", "1s"], max_attempts = 5 }
"#;

/// From now on, and until it goes, accounts of these customers are closed.
const CLOSE: &str = "
    create function judge.refuse_closed() returns trigger language plpgsql as $$
    begin
        raise exception 'account % is closed', new.account;
    end $$;
    create trigger closed before insert on judge.log
    for each row when (new.account like 'customer:9__') execute function judge.refuse_closed();";

const EVENT: &str = "select oncely.emit('accounting', 'payment.captured', '{\"amount\": 4200}'::jsonb, tenant => 'tenant-00')";

/// What has come about, in one number: all of it is there.
const FAILED: &str = "select count(*) from oncely.dead_letters where state = 'waiting'";
const PARKED: &str = "select count(*) from oncely.events where state = 'parked'";
const OBEYED: &str =
    "select count(*) from oncely.processes where jsonb_path_exists(consumers, '$[*].paused.reason')";
const DONE: &str = "select count(*) from oncely.processed_keys where key like 'usual-%'";

/// What there is to look at.
pub(crate) struct Scene {
    /// Where, for a person.
    pub(crate) text: String,
    console: Process,
}

impl Scene {
    /// Brings it about. Takes as long as a payment that fails is tried again, and a link is renewed.
    pub(crate) async fn set(arena: &mut Arena) -> anyhow::Result<Self> {
        let refunds = arena.queue().replacen("payments", "refunds", 1);
        arena.restart_with(&MORE.replace("QUEUE", &refunds), &refunds).await?;
        arena.sql(CLOSE).await?;
        arena.publish(payments(arena)?);
        arena.sql(EVENT).await?;
        let console = arena.start_oncely(&["console", "--listen", "127.0.0.1:0"], "console")?;
        pause(arena).await?;
        wait_until(arena, OBEYED, arena.workers.len()).await?;
        publish_refunds(arena, &refunds).await?;
        wait_until(arena, PARKED, 1).await?;
        wait_until(arena, DONE, USUAL as usize).await?;
        wait_until_given_up(arena).await?;
        arena.sql("drop trigger closed on judge.log").await?;
        let (link, operation) = operate(&console).await?;
        let site = link.split("/login").next().unwrap_or_default();
        let text = format!(
            "\nLook at it in the browser. The link works once, within ten minutes; the page that asks to sign in has another printed here.\n  \
             {link}\n\n\
             {site}{operation}\n  a requeue under way: {CLOSED} payments of accounts that were closed, one a second\n\
             {site}/failed\n  two groups that wait: amounts that are no whole numbers, and a key that came with another payload\n\
             {site}/consumer?name=refunds\n  a consumer that somebody has paused, why and until when; {REFUNDS} messages wait\n\
             {site}/outbox?state=parked\n  an event that was given up: its exchange is not there\n\
             {site}/keys?q=outcome%3Aduplicate\n  duplicates, for which no handler ran\n"
        );
        Ok(Self { text, console })
    }

    /// All links that its console has printed so far.
    pub(crate) fn links(&self) -> Vec<String> {
        Browser::links(&self.console.output()).map(str::to_owned).collect()
    }

    /// How many of them are told, or used up, when the scene is set.
    pub(crate) fn printed(&self) -> usize {
        self.links().len()
    }
}

/// Some that go well, some that don't, and a known one with another payload.
fn payments(arena: &Arena) -> anyhow::Result<Vec<Intent>> {
    let tenant = |number: u32| format!("tenant-{:02}", number % 20);
    let mut all = Vec::new();
    for number in 0..USUAL {
        let usual = Intent::new(&tenant(number), &format!("usual-{number:04}"), Act::Work, 0);
        let usual = usual.payment(number % 50, 100 + number);
        if number % 4 == 0 {
            all.push(usual.clone());
        }
        all.push(usual);
        if number < CLOSED {
            let closed = Intent::new(&tenant(number), &format!("closed-{number:04}"), Act::Fail, 0);
            all.push(closed.payment(900 + number % 7, 100 + number));
        }
        if number < WRONG {
            let key = format!("wrong-{number:04}");
            let body = format!(r#"{{"do":"work","key":"{key}","customer":{number},"amount":"{number}.50"}}"#);
            let (tenant, act, body) = (tenant(number), Act::NoNumber, body.into_bytes());
            all.push(Intent { tenant, key, act, body });
        }
    }
    let sent = arena.sent();
    let ((tenant, key), _) = sent.keys().next().context("no payment was sent")?;
    all.push(Intent::new(tenant, key, Act::Work, 1).payment(1, 1));
    Ok(all)
}

/// As soon as a worker has started with it.
async fn pause(arena: &Arena) -> anyhow::Result<()> {
    let pause =
        ["consumers", "pause", "refunds", "--for", "2h", "--reason", "the bank is moving its interface"];
    eventually("refunds are paused", || arena.oncely(&pause)).await
}

async fn publish_refunds(arena: &Arena, queue: &str) -> anyhow::Result<()> {
    let refund = |number: u32| {
        let mut headers = FieldTable::default();
        headers.insert("x-tenant-id".into(), AMQPValue::LongString(format!("tenant-{number:02}").into()));
        let id = format!("refund-{number:04}");
        let properties = BasicProperties::default().with_message_id(id.into()).with_headers(headers);
        (queue.to_owned(), properties, br#"{"do":"work"}"#.to_vec())
    };
    arena.broker().await?.publish_all("", (0..REFUNDS).map(refund).collect()).await
}

async fn wait_until(arena: &Arena, query: &'static str, wanted: usize) -> anyhow::Result<()> {
    eventually(query, || async {
        let mut connection = arena.connect().await?;
        let found: i64 = sqlx::query_scalar(query).fetch_one(&mut connection).await?;
        connection.close().await?;
        anyhow::ensure!(usize::try_from(found)? >= wanted, "{found} of {wanted}");
        anyhow::Ok(())
    })
    .await
}

/// Waits until all that fails is given up. A failure counts only while other payments succeed, so some go on.
async fn wait_until_given_up(arena: &Arena) -> anyhow::Result<()> {
    let goes_on = async {
        let mut pause = tokio::time::interval(Duration::from_millis(250));
        for round in 0.. {
            pause.tick().await;
            let payment = |number: u32| {
                let (tenant, key) = (format!("tenant-{:02}", number % 20), format!("steady-{number:04}"));
                Intent::new(&tenant, &key, Act::Work, 0).payment(number % 50, 100)
            };
            arena.publish((round * STEADY..(round + 1) * STEADY).map(payment).collect());
        }
    };
    tokio::select! {
        () = goes_on => Ok(()),
        done = wait_until(arena, FAILED, (CLOSED + WRONG + 1) as usize) => done,
    }
}

/// Comes in, begins a requeue as a person does, and has another link printed; returns it, and where the requeue is looked at.
async fn operate(console: &Process) -> anyhow::Result<(String, String)> {
    let last = |least: usize| {
        let output = console.output();
        let links: Vec<&str> = Browser::links(&output).collect();
        links.last().filter(|_| links.len() >= least).map(|link| (*link).to_owned()).ok_or(output.clone())
    };
    let link = eventually("the console's link", || async { last(1) }).await?;
    let mut browser = Browser::follow(&link).await?;
    let plan = "/failed/plan?change=requeue&consumer=payments&reason=attempts_exhausted&since=2h";
    let page = browser.get(plan).await?;
    let mut fields = page.form("/failed/operate").with_context(|| format!("no form: {}", page.status))?;
    let count = page.between(">Type ", " to confirm").context("no count")?;
    for (name, value) in [("note", "the accounts are open again"), ("rate", "1"), ("typed", count)] {
        fields.push((name.to_owned(), value.to_owned()));
    }
    let begun = browser.post("/failed/operate", &fields).await?;
    let operation = begun.header("location").with_context(|| format!("not begun: {}", begun.status))?;
    // Not a moment after the last one: it is asked for until it is there.
    let another = eventually("another link", || async {
        browser.post("/login", &[("renew".to_owned(), "1".to_owned())]).await.map_err(|e| e.to_string())?;
        last(2)
    });
    Ok((another.await?, operation.to_owned()))
}
