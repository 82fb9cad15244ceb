//! The proxy's faults, on real sockets and real servers.

// Clippy's exception for tests covers functions marked #[test], not their helpers.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Connection, ConnectionProperties};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use testbed::proxy::{Direction, Mode, OneShot, Protocol, Proxy};
use testbed::{Broker, Database, Servers, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// A server that sends back what it gets, and ends when its client does.
async fn echo(prefix: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&[prefix, &buffer[..read]].concat()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

async fn plain() -> Proxy {
    Proxy::start(Protocol::Plain, echo(b"").await).await.unwrap()
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await.unwrap()
}

async fn ask(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Nothing arrives within a moment that is long for a loopback.
async fn is_silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(Duration::from_millis(200), stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn what_is_sent_arrives_and_an_end_is_an_end() {
    let proxy = plain().await;
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, b"hello").await.unwrap(), b"hello");
    stream.shutdown().await.unwrap();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "no reset");
}

#[tokio::test]
async fn a_black_hole_swallows_nothing_in_the_end() {
    let proxy = plain().await;
    let mut old = connect(&proxy).await;
    assert_eq!(ask(&mut old, b"a").await.unwrap(), b"a");
    proxy.set(Mode::BlackHole);
    old.write_all(b"b").await.unwrap();
    // A new connection opens all the same.
    let mut new = connect(&proxy).await;
    new.write_all(b"c").await.unwrap();
    assert!(is_silent(&mut old).await && is_silent(&mut new).await);
    proxy.set(Mode::Pass);
    assert_eq!((old.read_u8().await.unwrap(), new.read_u8().await.unwrap()), (b'b', b'c'));
}

#[tokio::test]
async fn a_forgotten_connection_stays_silent_and_new_ones_do_not() {
    let proxy = plain().await;
    let mut old = connect(&proxy).await;
    assert_eq!(ask(&mut old, b"a").await.unwrap(), b"a");
    proxy.forget();
    old.write_all(b"b").await.unwrap();
    assert!(is_silent(&mut old).await);
    assert_eq!(ask(&mut connect(&proxy).await, b"c").await.unwrap(), b"c");
    proxy.cut();
    assert!(old.read_u8().await.is_err());
}

#[tokio::test]
async fn a_cut_is_a_reset_for_all_connections_even_silent_ones() {
    let proxy = plain().await;
    let mut open = connect(&proxy).await;
    assert_eq!(ask(&mut open, b"a").await.unwrap(), b"a");
    proxy.set(Mode::BlackHole);
    let mut silent = connect(&proxy).await;
    silent.write_all(b"b").await.unwrap();
    assert!(is_silent(&mut silent).await);
    proxy.cut();
    for stream in [&mut open, &mut silent] {
        let error = stream.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    proxy.set(Mode::Pass);
    assert_eq!(ask(&mut connect(&proxy).await, b"c").await.unwrap(), b"c");
}

#[tokio::test]
async fn a_refusing_proxy_leaves_open_connections_alone() {
    let proxy = plain().await;
    let mut old = connect(&proxy).await;
    assert_eq!(ask(&mut old, b"a").await.unwrap(), b"a");
    proxy.set(Mode::Refuse);
    let mut new = connect(&proxy).await;
    assert!(ask(&mut new, b"b").await.is_err());
    assert_eq!(ask(&mut old, b"c").await.unwrap(), b"c");
}

#[tokio::test]
async fn a_half_closed_connection_still_carries_the_other_way() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = Proxy::start(Protocol::Plain, listener.local_addr().unwrap()).await.unwrap();
    let mut client = connect(&proxy).await;
    client.write_all(b"a").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'a');
    proxy.half_close();
    assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    client.write_all(b"b").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'b');
}

#[tokio::test]
async fn a_delayed_answer_is_late_and_whole() {
    let proxy = plain().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::Delay(Duration::from_millis(300)));
    stream.write_all(b"hello").await.unwrap();
    assert!(is_silent(&mut stream).await);
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello");
}

#[tokio::test]
async fn a_throttled_connection_delivers_everything_and_goes_on_when_it_is_set_free() {
    let proxy = plain().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::Throttle(100));
    stream.write_all(&[7; 1_000]).await.unwrap();
    let mut first = [0; 5];
    stream.read_exact(&mut first).await.unwrap();
    proxy.set(Mode::Pass);
    let mut rest = vec![0; 995];
    tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut rest)).await.unwrap().unwrap();
    assert!(rest.iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn a_connection_is_torn_after_exactly_so_many_bytes() {
    let proxy = plain().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::CutAfter(Direction::Down, 7));
    assert_eq!(ask(&mut stream, b"hello").await.unwrap(), b"hello");
    stream.write_all(b"world").await.unwrap();
    let mut torn = [0; 2];
    stream.read_exact(&mut torn).await.unwrap();
    assert_eq!(&torn, b"wo");
    assert!(stream.read_u8().await.is_err());
    assert_eq!(proxy.struck(), 1);
}

#[tokio::test]
async fn garbled_bytes_hold_no_digit_and_no_line_end() {
    let proxy = plain().await;
    let mut stream = connect(&proxy).await;
    proxy.set(Mode::Garble);
    let answer = ask(&mut stream, b":0\r\n:1\r\n").await.unwrap();
    assert!(answer.iter().all(|byte| *byte >= 0x80));
}

#[tokio::test]
async fn new_connections_go_where_the_proxy_is_pointed() {
    let proxy = plain().await;
    let mut old = connect(&proxy).await;
    assert_eq!(ask(&mut old, b"a").await.unwrap(), b"a");
    proxy.retarget(echo(b"!").await);
    assert_eq!(ask(&mut connect(&proxy).await, b"a").await.unwrap(), b"!");
    assert_eq!(ask(&mut old, b"b").await.unwrap(), b"b");
}

/// A table on a real server, and a URL that leads to it through a proxy.
async fn table() -> (Servers, Database, Proxy, String) {
    let servers = Servers::start().await.unwrap();
    let database = Database::create(&servers.urls().postgres).await.unwrap();
    let mut direct = database.connect().await.unwrap();
    sqlx::query("create table t (n integer)").execute(&mut direct).await.unwrap();
    direct.close().await.unwrap();
    let (front, name) = database.url().rsplit_once('/').unwrap();
    let port: u16 = front.rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::start(Protocol::Postgres, (Ipv4Addr::LOCALHOST, port).into()).await.unwrap();
    let user = front.split_once("://").unwrap().1.rsplit_once('@').unwrap().0;
    let through = format!("postgres://{user}@127.0.0.1:{}/{name}", proxy.port());
    (servers, database, proxy, through)
}

async fn insert_and_commit(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query("insert into t values (1)").execute(&mut *transaction).await?;
    transaction.commit().await
}

async fn rows(database: &Database) -> i64 {
    let mut direct = database.connect().await.unwrap();
    sqlx::query(AssertSqlSafe("select count(*) from t")).fetch_one(&mut direct).await.unwrap().get(0)
}

#[tokio::test]
async fn a_commit_whose_reply_is_lost_has_happened_and_one_that_is_cut_off_has_not() {
    let (_servers, database, proxy, through) = table().await;
    let mut connection = PgConnection::connect(&through).await.unwrap();
    insert_and_commit(&mut connection).await.unwrap();
    assert_eq!(rows(&database).await, 1);

    proxy.arm(Some(OneShot::LoseCommitReply));
    insert_and_commit(&mut connection).await.unwrap_err();
    assert_eq!(proxy.struck(), 1);
    // The server answered before the connection was reset.
    assert_eq!(rows(&database).await, 2);

    let mut connection = PgConnection::connect(&through).await.unwrap();
    proxy.arm(Some(OneShot::CutBeforeCommit));
    insert_and_commit(&mut connection).await.unwrap_err();
    assert_eq!(proxy.struck(), 2);
    eventually("the session is gone", || async {
        let mut direct = database.connect().await.unwrap();
        let open = sqlx::query("select from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()")
            .fetch_all(&mut direct)
            .await
            .unwrap();
        if open.is_empty() { Ok(()) } else { Err(open.len()) }
    })
    .await
    .unwrap();
    assert_eq!(rows(&database).await, 2);
    database.drop_now().await.unwrap();
}

#[tokio::test]
async fn a_lost_acknowledgement_makes_the_message_come_again() {
    let servers = Servers::start().await.unwrap();
    let url = &servers.urls().rabbitmq;
    let (front, rest) = url.rsplit_once('@').unwrap();
    let (host, vhost) = rest.split_once('/').unwrap();
    let port: u16 = host.rsplit_once(':').unwrap().1.parse().unwrap();
    let proxy = Proxy::start(Protocol::Amqp, (Ipv4Addr::LOCALHOST, port).into()).await.unwrap();
    let through = format!("{front}@127.0.0.1:{}/{vhost}", proxy.port());

    let broker = Broker::connect(url).await.unwrap();
    let queue = format!("proxy-{}", uuid::Uuid::new_v4().simple());
    broker.declare_queue(&queue, FieldTable::default()).await.unwrap();
    broker.publish("", &queue, BasicProperties::default(), b"once").await.unwrap();
    for attempt in 0..2 {
        let connection = Connection::connect(&through, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let mut deliveries = channel
            .basic_consume(
                queue.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        let delivery = tokio::time::timeout(Duration::from_secs(10), deliveries.next()).await;
        let delivery = delivery.unwrap().unwrap().unwrap();
        assert_eq!(delivery.redelivered, attempt > 0);
        proxy.arm((attempt == 0).then_some(OneShot::LoseAck));
        // Perhaps written before the reset is read.
        let _ = delivery.ack(BasicAckOptions::default()).await;
        if attempt == 0 {
            eventually("the acknowledgement is lost", || async {
                if proxy.struck() == 1 { Ok(()) } else { Err("not yet") }
            })
            .await
            .unwrap();
        } else {
            connection.close(200, "done".into()).await.unwrap();
        }
    }
    assert!(broker.take(&queue).await.unwrap().is_none(), "acknowledged the second time");
    // The confirm of a publish, the other way.
    let publisher = Broker::connect(&through).await.unwrap();
    proxy.arm(Some(OneShot::LoseConfirm));
    publisher.publish("", &queue, BasicProperties::default(), b"arrived").await.unwrap_err();
    let taken = broker.take_exactly(&queue, 1).await.unwrap();
    assert_eq!(taken[0].data, b"arrived");
    broker.delete_queue(&queue).await.unwrap();
}
