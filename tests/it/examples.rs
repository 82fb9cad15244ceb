//! The examples, on real servers, killed in the middle: one effect an order, and as many events as orders.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testbed::{Process, Scratch, VirtualHost};

use crate::support::{World, program, servers};

const ORDERS: i64 = 60;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    let folder = program("oncely").parent().and_then(Path::parent).unwrap().to_path_buf();
    // An example that runs from there names files by their full path.
    std::fs::canonicalize(folder).unwrap()
}

/// The shop's tables, a virtual host of its own (the examples' queues have fixed names), and a configuration.
struct Shop {
    world: World,
    // After the world, which has a connection to it.
    _broker: VirtualHost,
    logs: Scratch,
}

impl Shop {
    async fn open(configuration: &str) -> Self {
        let broker = VirtualHost::create().await.unwrap();
        let mut urls = servers().await.urls().clone();
        urls.rabbitmq = broker.url();
        let mut world = World::on(urls).await;
        let schema = std::fs::read_to_string(root().join("examples/shop.sql")).unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(schema)).execute(&mut world.sql).await.unwrap();
        world.open_schema("shop").await;
        world.configure(&std::fs::read_to_string(root().join("examples").join(configuration)).unwrap());
        world.configure("[relay]\npoll = \"50ms\"");
        world.apply_topology().await;
        Self { world, _broker: broker, logs: Scratch::new("examples").unwrap() }
    }

    /// Starts an example's program.
    fn start(&self, name: &str, command: &Path, arguments: &[&str]) -> Process {
        let environment = [
            ("DATABASE_URL", self.world.database.url().to_owned()),
            ("AMQP_URL", self.world.urls.rabbitmq.clone()),
            ("ONCELY_CONFIG", self.world.file().display().to_string()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ];
        let environment: Vec<(&str, &str)> = environment.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let log = self.logs.path().join(format!("{name}-{}.log", uuid::Uuid::new_v4().simple()));
        Process::start(command, arguments, &environment, &log).unwrap()
    }

    /// Runs an example's program to its end; what it printed.
    async fn run(&self, name: &str, command: &Path, arguments: &[&str]) -> String {
        let mut process = self.start(name, command, arguments);
        let status = process.wait_for_end(Duration::from_secs(60)).await.unwrap();
        assert!(status.success(), "{name}: {status}: {}", process.output());
        process.output()
    }

    /// Waits until a consumer is inside the transaction of a message.
    async fn wait_until_stuck(&mut self) {
        let stuck =
            "select count(*) from pg_locks where not granted and relation = 'shop.invoices'::regclass";
        self.world.wait_for(stuck, 1).await;
    }

    /// Orders and events while consumer, relay and shop are killed; what must be there in the end.
    async fn orders_survive(&mut self, order: impl Fn(&Self) -> Process, consume: impl Fn(&Self) -> Process) {
        // The first consumer declares exchange and queue: an event that finds none waits until somebody retries it.
        let mut consumer = consume(self);
        self.world.wait_for_line(&consumer, "consuming").await;
        let mut relay = self.world.start("relay");
        // In the middle of a message: its invoice waits for this lock, its key is claimed.
        let mut gate = self.world.database.connect().await.unwrap();
        sqlx::raw_sql("begin; lock table shop.invoices in exclusive mode").execute(&mut gate).await.unwrap();
        let mut shop = order(self);
        self.wait_until_stuck().await;
        self.world.kill(&mut consumer);
        self.world.kill(&mut relay);
        self.world.kill(&mut shop);
        sqlx::raw_sql("commit").execute(&mut gate).await.unwrap();
        let mut consumer = consume(self);
        let relay = self.world.start("relay");
        let mut shop = order(self);
        // And at some moment, twice.
        for share in [3, 2] {
            let some = format!("select (count(*) >= {})::int::bigint from shop.invoices", ORDERS / share);
            self.world.wait_for(&some, 1).await;
            self.world.kill(&mut consumer);
            consumer = consume(self);
        }
        let status = shop.wait_for_end(Duration::from_secs(60)).await.unwrap();
        assert!(status.success(), "{}", shop.output());
        self.world.wait_within(Duration::from_secs(60), "select count(*) from oncely.events", 0).await;
        let invoices = "select count(distinct order_id) from shop.invoices";
        self.world.wait_within(Duration::from_secs(60), invoices, ORDERS).await;
        self.world.stop(relay).await;
        self.world.kill(&mut consumer);
        // Whatever is left in the queue is a copy.
        assert_eq!(self.world.count("select count(*) from shop.orders").await, ORDERS);
        assert_eq!(
            self.world.count("select count(*) from shop.invoices").await,
            ORDERS,
            "one invoice an order"
        );
        let differ = "select count(*) from shop.orders as o full join shop.invoices as i on i.tenant = o.tenant and i.order_id = o.id
            where o.cents is distinct from i.cents";
        assert_eq!(self.world.count(differ).await, 0);
        let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
        assert_eq!(self.world.count(done).await, ORDERS, "as many events as orders");
        assert_eq!(
            self.world.count("select count(*) from oncely.audit where outcome <> 'completed'").await,
            0
        );
    }

    /// One order fails once and comes back from the delay queue; one is given up, and requeued once its cause is mended.
    async fn gives_up_and_runs_again(&mut self, consume: impl Fn(&Self) -> Process) -> Process {
        let fragile = "create sequence shop.tries;
            create function shop.fragile() returns trigger language plpgsql as $$
            begin
                case new.order_id
                    when 'late' then
                        if nextval('shop.tries') = 1 then raise exception 'secret %', new.cents; end if;
                    when 'bad' then raise exception using errcode = '22023', message = 'secret ' || new.cents;
                    else null;
                end case;
                return new;
            end $$;
            create trigger fragile before insert on shop.invoices for each row execute function shop.fragile()";
        sqlx::raw_sql(fragile).execute(&mut self.world.sql).await.unwrap();
        let consumer = consume(self);
        for key in ["late", "bad", "good"] {
            let order = serde_json::json!({ "order": key, "cents": 4711 }).to_string();
            let message = crate::support::message("acme", key);
            self.world.broker.publish("shop", "order.placed", message, order.as_bytes()).await.unwrap();
        }
        self.world.wait_for("select count(*) from shop.invoices where order_id in ('late', 'good')", 2).await;
        let waiting = "select count(*) from oncely.dead_letters where state = 'waiting' and reason = 'poison' and whole and key = 'bad'";
        self.world.wait_for(waiting, 1).await;
        let retried = "select count(*) from oncely.audit where outcome = 'retried' and key = 'late'";
        assert_eq!(self.world.count(retried).await, 1);
        let told = "select count(*) from oncely.audit where detail ~ 'secret|4711'";
        assert_eq!(self.world.count(told).await, 0, "what a row held is not in the trail");
        sqlx::raw_sql("drop trigger fragile on shop.invoices").execute(&mut self.world.sql).await.unwrap();
        let requeued = self.world.oncely(&["failed", "requeue", "--key", "bad", "--yes"]).await;
        assert!(requeued.status.success(), "{requeued:?}");
        self.world.wait_for("select count(*) from shop.invoices where order_id = 'bad'", 1).await;
        self.world.wait_for("select count(*) from oncely.dead_letters where state <> 'requeued'", 0).await;
        consumer
    }
}

#[tokio::test]
async fn the_shop_in_python_is_killed_and_invoices_each_order_once() {
    let folder = root().join("examples/python");
    let python = testbed::python(&folder, &target().join("examples/python")).unwrap();
    let script = |name: &str| folder.join(name).display().to_string();
    let (order, consumer, request) = (script("order.py"), script("consumer.py"), script("request.py"));
    let mut shop = Shop::open("shop.toml").await;
    let count = ORDERS.to_string();
    shop.orders_survive(
        |shop| shop.start("order.py", &python, &[&order, &count]),
        |shop| shop.start("consumer.py", &python, &[&consumer]),
    )
    .await;

    let mut worker =
        shop.gives_up_and_runs_again(|shop| shop.start("consumer.py", &python, &[&consumer])).await;
    shop.world.kill(&mut worker);

    // Request and reply: killed between request and reply, asked again, each copy of the request gets the same bytes.
    let mut impatient = shop.start("request.py", &python, &[&request, "request-1", "3"]);
    shop.world.wait_for_ready("shop.quotes", 1).await;
    shop.world.kill(&mut impatient);
    let mut worker = shop.world.start("worker");
    let relay = shop.world.start("relay");
    let first = shop.run("request.py", &python, &[&request, "request-1", "3"]).await;
    assert_eq!(serde_json::from_str::<Value>(first.trim()).unwrap(), serde_json::json!({ "cents": 750 }));
    shop.world.kill(&mut worker);
    let worker = shop.world.start_as("worker", "second");
    assert_eq!(shop.run("request.py", &python, &[&request, "request-1", "3"]).await, first);
    let quotes = "select count(*) from oncely.audit where consumer = 'quotes' and outcome = 'completed'";
    assert_eq!(shop.world.count(quotes).await, 1);
    shop.world.stop(worker).await;
    shop.world.stop(relay).await;
}

#[tokio::test]
async fn a_charge_in_python_is_killed_in_the_call_and_charged_once() {
    let folder = root().join("examples/python");
    let python = testbed::python(&folder, &target().join("examples/python")).unwrap();
    let script = folder.join("charge.py").display().to_string();
    let mut shop = Shop::open("shop.toml").await;
    let run = |shop: &Shop, delay: &str| {
        let environment = [("DATABASE_URL", shop.world.database.url()), ("PROVIDER_DELAY", delay)];
        let log = shop.logs.path().join(format!("charge-{}.log", uuid::Uuid::new_v4().simple()));
        Process::start(&python, &[&script, "order-1"], &environment, &log).unwrap()
    };
    let ends = async |mut process: Process| {
        let status = process.wait_for_end(Duration::from_secs(60)).await.unwrap();
        assert!(status.success(), "{}", process.output());
        process.output().trim().to_owned()
    };
    // The provider has charged, and its answer never comes.
    let mut first = run(&shop, "600");
    shop.world.wait_for("select count(*) from shop.provider_books", 1).await;
    shop.world.kill(&mut first);
    assert_eq!(ends(run(&shop, "0")).await, "requeue", "its lease is not over");
    let over = "update oncely.idempotency_keys set not_before = now() - interval '1 second', grace_ends_at = now() - interval '1 second'";
    sqlx::query(over).execute(&mut shop.world.sql).await.unwrap();
    assert_eq!(ends(run(&shop, "0")).await, "ack");
    assert_eq!(ends(run(&shop, "0")).await, "ack", "a copy");
    let calls = "select sum(calls) from shop.provider_books";
    assert_eq!(shop.world.count(calls).await, 2, "called again, by the same key");
    assert_eq!(shop.world.count("select count(*) from shop.provider_books").await, 1, "charged once");
    assert_eq!(shop.world.count("select count(*) from shop.payments").await, 1);
    let told = "select count(*) from oncely.audit where outcome = 'taken_over'";
    assert_eq!(shop.world.count(told).await, 1);
    let story = shop.world.oncely(&["explain", "order-1"]).await;
    let told = String::from_utf8_lossy(&story.stdout).into_owned();
    assert!(told.contains("step       charge: done"), "{told}");
}

#[tokio::test]
async fn the_shop_in_node_is_killed_and_invoices_each_order_once() {
    let folder = target().join("examples/node");
    let node = testbed::node(&root().join("examples/node"), &folder).unwrap();
    let script = |name: &str| folder.join(name).display().to_string();
    let (order, consumer) = (script("order.js"), script("consumer.js"));
    let mut shop = Shop::open("shop.toml").await;
    let count = ORDERS.to_string();
    shop.orders_survive(
        |shop| shop.start("order.js", &node, &[&order, &count]),
        |shop| shop.start("consumer.js", &node, &[&consumer]),
    )
    .await;
    shop.gives_up_and_runs_again(|shop| shop.start("consumer.js", &node, &[&consumer])).await;
}

#[tokio::test]
async fn a_charge_in_node_behind_a_stock_worker_is_killed_on_both_sides_and_charged_once() {
    let folder = target().join("examples/node");
    let node = testbed::node(&root().join("examples/node"), &folder).unwrap();
    let script = folder.join("charges.js").display().to_string();
    let mut shop = Shop::open("node/charges.toml").await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    shop.world.reconfigure("127.0.0.1:8090", &format!("127.0.0.1:{free}"));
    let serve = |shop: &Shop, delay: &str| {
        let environment =
            [("DATABASE_URL", shop.world.database.url()), ("PORT", &free), ("PROVIDER_DELAY", delay)];
        let log = shop.logs.path().join(format!("charges-{}.log", uuid::Uuid::new_v4().simple()));
        Process::start(&node, &[&script], &environment, &log).unwrap()
    };
    let order = async |shop: &Shop, key: &str, body: &str| {
        let order = crate::support::message("acme", key);
        shop.world.broker.publish("", "shop.charges", order, body.as_bytes()).await.unwrap();
    };
    // Both have charged, and their answers never come: the service is killed, then the worker.
    let mut service = serve(&shop, "600000");
    let mut worker = shop.world.start("worker");
    shop.world.wait_for_line(&service, "listening").await;
    order(&shop, "order-1", r#"{"cents": 500}"#).await;
    shop.world.wait_for("select count(*) from shop.provider_books", 1).await;
    shop.world.kill(&mut service);
    let service = serve(&shop, "600000");
    let done = "select count(*) from oncely.idempotency_keys where status = 'COMPLETED'";
    shop.world.wait_for(done, 1).await;
    order(&shop, "order-2", r#"{"cents": 500}"#).await;
    shop.world.wait_for("select count(*) from shop.provider_books", 2).await;
    shop.world.kill(&mut worker);
    let worker = shop.world.start_as("worker", "second");
    shop.world.wait_for(done, 2).await;
    order(&shop, "order-3", "{}").await;
    shop.world
        .wait_for("select count(*) from oncely.dead_letters where reason = 'handler_rejected'", 1)
        .await;
    assert_eq!(shop.world.count("select count(*) from shop.provider_books").await, 2, "one charge an order");
    assert_eq!(shop.world.count("select sum(calls) from shop.provider_books").await, 4, "called twice each");
    let response = shop
        .world
        .text("select response ->> 'charge' from oncely.idempotency_keys where key = 'order-2'")
        .await;
    assert!(response.is_some());
    shop.world.stop(worker).await;
    drop(service);
}

#[tokio::test]
async fn a_charge_in_rust_is_killed_in_the_call_and_charged_once() {
    let example = program("oncely").with_file_name("examples").join("rust_charge");
    assert!(example.exists(), "run `cargo build --examples`: {} is not there", example.display());
    let mut shop = Shop::open("rust_charge/oncely.toml").await;
    let run = |shop: &Shop, delay: &str| {
        let file = shop.world.file().display().to_string();
        let environment = [
            ("DATABASE_URL", shop.world.database.url()),
            ("AMQP_URL", &shop.world.urls.rabbitmq),
            ("ONCELY_CONFIG", &file),
            ("PROVIDER_DELAY", delay),
        ];
        let log = shop.logs.path().join(format!("rust_charge-{}.log", uuid::Uuid::new_v4().simple()));
        Process::start(&example, &[], &environment, &log).unwrap()
    };
    let mut first = run(&shop, "600");
    let order = crate::support::message("acme", "order-1");
    shop.world.broker.publish("", "shop.charges", order, br#"{"cents": 500}"#).await.unwrap();
    // The provider has charged, and its answer never comes.
    shop.world.wait_for("select count(*) from shop.provider_books", 1).await;
    shop.world.kill(&mut first);
    let second = run(&shop, "0");
    shop.world.wait_for("select count(*) from shop.payments", 1).await;
    shop.world.stop(second).await;
    assert_eq!(shop.world.count("select sum(calls) from shop.provider_books").await, 2, "by the same key");
    assert_eq!(shop.world.count("select count(*) from shop.provider_books").await, 1, "charged once");
}

#[tokio::test]
async fn the_shop_in_rust_is_killed_and_places_each_order_once() {
    let example = program("oncely").with_file_name("examples").join("rust_shop");
    assert!(example.exists(), "run `cargo build --examples`: {} is not there", example.display());
    let mut shop = Shop::open("rust_shop/oncely.toml").await;
    // Whoever listens to the shop's events.
    shop.world.broker.declare_exchange("shop", lapin::ExchangeKind::Topic).await.unwrap();
    shop.world.broker.declare_queue("listener", lapin::types::FieldTable::default()).await.unwrap();
    shop.world.broker.bind("listener", "shop", "order.placed").await.unwrap();
    let mut worker = shop.start("rust_shop", &example, &[]);
    // In the middle of the transaction.
    let mut gate = shop.world.database.connect().await.unwrap();
    sqlx::raw_sql("begin; lock table shop.orders in exclusive mode").execute(&mut gate).await.unwrap();
    let mut first = shop.start("rust_shop", &example, &["request", "order-1", "500"]);
    let stuck = "select count(*) from pg_locks where not granted and relation = 'shop.orders'::regclass";
    shop.world.wait_for(stuck, 1).await;
    shop.world.kill(&mut worker);
    sqlx::raw_sql("commit").execute(&mut gate).await.unwrap();
    let worker = shop.start("rust_shop", &example, &[]);
    // After the commit, before the event and the reply have left.
    shop.world.wait_for("select count(*) from shop.orders", 1).await;
    let relay = shop.world.start("relay");
    assert!(first.wait_for_end(Duration::from_secs(60)).await.unwrap().success(), "{}", first.output());
    for _ in 0..2 {
        let again = shop.run("rust_shop", &example, &["request", "order-1", "500"]).await;
        assert_eq!(again, first.output(), "the same reply, byte for byte");
    }
    assert_eq!(
        serde_json::from_str::<Value>(first.output().trim()).unwrap(),
        serde_json::json!({ "placed": "order-1", "cents": 500 })
    );
    shop.world.wait_for("select count(*) from oncely.events", 0).await;
    shop.world.stop(worker).await;
    shop.world.stop(relay).await;
    assert_eq!(shop.world.count("select count(*) from shop.orders").await, 1);
    let event = shop.world.broker.take_exactly("listener", 1).await.unwrap().remove(0);
    assert_eq!(serde_json::from_slice::<Value>(&event.data).unwrap()["order"], "order-1");
}
