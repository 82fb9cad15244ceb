//! One call for all requests of a key, and one answer.

use futures::future::join_all;
use testbed::eventually;

use super::{SHORT, Site, get, post, state, with};

#[tokio::test]
async fn a_request_that_comes_again_is_one_call_and_gets_equal_bytes() {
    let mut site = Site::start("").await;
    let request = post("/do/201?a=%2F", "order-1", "{\"amount\": 7}");
    let first = site.ask(&request).await;
    assert_eq!((first.status, first.is_replayed()), (201, false), "{first:?}");
    assert_eq!(first.header("set-cookie").as_deref(), Some("session=1"));
    for _ in 0..5 {
        let again = site.ask(&request).await;
        assert_eq!((again.status, &again.body, again.is_replayed()), (201, &first.body, true));
        assert_eq!(again.header("content-type").as_deref(), Some("application/json"));
        assert_eq!(again.header("set-cookie"), None, "a session is not given to whoever repeats a key");
    }
    // Quoted, as the draft has it: the same key.
    assert!(site.ask(&post("/do/201?a=%2F", "\"order-1\"", "{\"amount\": 7}")).await.is_replayed());
    let calls = site.upstream.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0].headers("idempotency-key"), ["order-1"]);
    assert_eq!((calls[0].target(), calls[0].body.as_slice()), ("/do/201?a=%2F", &b"{\"amount\": 7}"[..]));
    assert_eq!(state(&mut site.world, "order-1").await.as_deref(), Some("COMPLETED"));
    // A client's error is an answer, too.
    for _ in 0..2 {
        assert_eq!(site.ask(&post("/do/410", "order-2", "{}")).await.status, 410);
    }
    assert_eq!(site.upstream.calls_of("/do/410").len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn sixty_four_twins_at_two_gateways_are_one_call() {
    let mut site = Site::start("wait = \"30s\"").await;
    let (other, second) = site.another("second").await;
    let request = post("/do/hang", "twins", "{}");
    let asked: Vec<_> = (0..64)
        .map(|number| {
            let (request, client) = (request.clone(), if number % 2 == 0 { site.client } else { second });
            tokio::spawn(async move { client.ask(&request).await })
        })
        .collect();
    site.upstream.wait_for_calls(1).await;
    site.upstream.go_on();
    let replies: Vec<_> = join_all(asked).await.into_iter().map(Result::unwrap).collect();
    assert!(
        replies.iter().all(|reply| reply.status == 201 && reply.body == b"{\"late\": true}"),
        "{replies:?}"
    );
    assert_eq!(replies.iter().filter(|reply| !reply.is_replayed()).count(), 1);
    assert_eq!(site.upstream.calls().len(), 1);
    assert_eq!(state(&mut site.world, "twins").await.as_deref(), Some("COMPLETED"));
    site.world.stop(other).await;
    site.stop().await;
}

#[tokio::test]
async fn a_twin_that_would_wait_too_long_is_told_when_to_come_back() {
    let site = Site::start(&format!("wait = \"100ms\"\n{SHORT}")).await;
    let request = post("/do/hang", "slow", "{}");
    let (first, client) = (request.clone(), site.client);
    let first = tokio::spawn(async move { client.ask(&first).await });
    site.upstream.wait_for_calls(1).await;
    let twin = site.ask(&request).await;
    assert_eq!(twin.said(), (409, "in-flight".to_owned()), "{twin:?}");
    assert!(["1", "2"].contains(&twin.header("retry-after").unwrap().as_str()), "{twin:?}");
    site.upstream.go_on();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(site.ask(&request).await.is_replayed());
    site.stop().await;
}

#[tokio::test]
async fn a_call_that_outlasts_its_lease_keeps_its_key() {
    let mut site = Site::start("lease = \"2s\"\nmax_run = \"2m\"\nwait = \"1s\"").await;
    let request = post("/do/hang", "k", "{}");
    let (client, ask) = (site.client, request.clone());
    let first = tokio::spawn(async move { client.ask(&ask).await });
    site.upstream.wait_for_calls(1).await;
    let renewed = "select count(*) from oncely.idempotency_keys
         where key = 'k' and owner is not null and not_before > created_at + interval '4 seconds'";
    site.world.wait_for(renewed, 1).await;
    let twin = site.ask(&request).await;
    assert_eq!(twin.status, 409, "{twin:?}");
    site.upstream.go_on();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(site.ask(&request).await.is_replayed());
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn a_call_goes_on_when_another_gateway_has_taken_its_key_and_its_answer_is_the_answer() {
    let mut site = Site::start("lease = \"3s\"\nmax_run = \"2m\"\nwait = \"100ms\"").await;
    let (other, second) = site.another("second").await;
    let request = post("/do/hang", "k", "{}");
    let (client, ask) = (site.client, request.clone());
    let first = tokio::spawn(async move { client.ask(&ask).await });
    site.upstream.wait_for_calls(1).await;
    // As a clock that jumps does it.
    let ends = "update oncely.idempotency_keys set not_before = clock_timestamp() - interval '1 second' where owner is not null";
    let taken_over = || async {
        sqlx::query(ends).execute(&mut site.world.database.connect().await?).await?;
        let said = second.ask(&request).await.said();
        anyhow::ensure!(said == (409, "outcome-unknown".to_owned()), "{said:?}");
        anyhow::Ok(())
    };
    eventually("another gateway takes the key over", taken_over).await.unwrap();
    assert_eq!(first.await.unwrap().status, 503, "its client waits no longer than the lease");
    // The call goes on, and keeps no other request with the key waiting.
    eventually("the turn of the key is free", || async {
        let said = site.ask(&request).await.said();
        anyhow::ensure!(said == (409, "outcome-unknown".to_owned()), "{said:?}");
        anyhow::Ok(())
    })
    .await
    .unwrap();
    site.upstream.go_on();
    eventually("the answer is there", || async {
        let reply = second.ask(&request).await;
        anyhow::ensure!((reply.status, reply.is_replayed()) == (201, true), "{reply:?}");
        anyhow::Ok(())
    })
    .await
    .unwrap();
    assert_eq!(site.upstream.calls().len(), 1);
    assert_eq!(state(&mut site.world, "k").await.as_deref(), Some("COMPLETED"));
    site.world.stop(other).await;
    site.stop().await;
}

#[tokio::test]
async fn the_same_key_is_another_request_with_another_body_path_or_principal() {
    let site = Site::start("").await;
    let of = |path: &str, principal: &str, body: &str| {
        with(path, &format!("Idempotency-Key: k\r\nAuthorization: {principal}\r\n"), body)
    };
    let first = of("/do/201", "Bearer ana", "{}");
    assert_eq!(site.ask(&first).await.status, 201);
    for other in [
        of("/do/201", "Bearer ana", "{ }"),
        of("/do/201?x", "Bearer ana", "{}"),
        of("/do/201", "Bearer bo", "{}"),
        post("/do/201", "k", "{}"),
        first.replace("Host: shop", "Host: stall"),
    ] {
        let refused = site.ask(&other).await;
        assert_eq!(refused.said(), (422, "key-reused".to_owned()), "{other}");
        assert!(!String::from_utf8_lossy(&refused.body).contains("call"), "nothing of the first answer");
    }
    assert!(site.ask(&first).await.is_replayed());
    assert_eq!(site.upstream.calls().len(), 1);
    assert_eq!(site.upstream.calls()[0].headers("content-length"), ["2"]);
    // An empty body is told as one, and the body of a GET goes on.
    site.ask(&post("/do/202", "k2", "")).await;
    site.ask(&get("/do/200", "Content-Length: 5\r\n\r\nquery")).await;
    assert_eq!(site.upstream.calls_of("/do/202")[0].headers("content-length"), ["0"]);
    let search = site.upstream.calls_of("/do/200").remove(0);
    assert_eq!((search.headers("content-length"), &search.body[..]), (vec!["5"], &b"query"[..]));
    site.stop().await;
}

#[tokio::test]
async fn a_tenant_is_a_headers_only_where_that_is_said() {
    let site = Site::start("tenant = { header = \"X-Tenant\" }\nprincipal = []").await;
    let of = |tenant: &str| with("/do/201", &format!("Idempotency-Key: k\r\n{tenant}"), "{}");
    for tenant in ["acme", "bravo"] {
        assert!(!site.ask(&of(&format!("X-Tenant: {tenant}\r\n"))).await.is_replayed(), "{tenant}");
        assert!(site.ask(&of(&format!("X-Tenant: {tenant}\r\n"))).await.is_replayed(), "{tenant}");
    }
    // A client can't take it out of its own request either.
    for wrong in [
        "",
        "X-Tenant: \r\n",
        "X-Tenant: acme\r\nX-Tenant: bravo\r\n",
        "X-Tenant: acme\r\nConnection: x-tenant\r\n",
    ] {
        assert_eq!(site.ask(&of(wrong)).await.said(), (400, "tenant-missing".to_owned()), "{wrong}");
    }
    assert_eq!(site.upstream.calls().len(), 2);
    site.stop().await;
    let site = Site::start("").await;
    assert!(!site.ask(&of("X-Tenant: acme\r\n")).await.is_replayed());
    assert!(site.ask(&of("X-Tenant: bravo\r\n")).await.is_replayed(), "nobody reads it");
    site.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_to_be_kept_is_sent_whole_and_replayed_without_its_body() {
    let site = Site::start("max_response = 100_000").await;
    let request = post("/do/large", "k", "{}");
    let first = site.ask(&request).await;
    assert_eq!((first.status, first.body.len()), (201, 300_000));
    let again = site.ask(&request).await;
    assert_eq!((again.status, again.body.len(), again.is_replayed()), (201, 0, true));
    assert_eq!(again.header("oncely-body-omitted").as_deref(), Some("true"));
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_interrupts_nothing() {
    let site = Site::start("").await;
    let request = post("/do/hang", "k", "{}");
    let (left, client) = (request.clone(), site.client);
    let leaving = tokio::spawn(async move { client.ask(&left).await });
    site.upstream.wait_for_calls(1).await;
    leaving.abort();
    site.upstream.go_on();
    let again = site.ask(&request).await;
    assert_eq!((again.status, again.is_replayed()), (201, true), "{again:?}");
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn a_multipart_body_that_is_made_again_is_another_one_and_its_client_is_told_why() {
    let site = Site::start("").await;
    let form = |boundary: &str| {
        let body = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"amount\"\r\n\r\n7\r\n--{boundary}--\r\n"
        );
        let headers =
            format!("Idempotency-Key: form\r\nContent-Type: multipart/form-data; boundary={boundary}\r\n");
        with("/do/201", &headers, &body)
    };
    assert_eq!(site.ask(&form("first")).await.status, 201);
    assert!(site.ask(&form("first")).await.is_replayed(), "the same bytes");
    let other = site.ask(&form("other")).await;
    assert_eq!(other.said(), (422, "key-reused".to_owned()));
    assert!(String::from_utf8_lossy(&other.body).contains("multipart boundary"), "{other:?}");
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}

#[tokio::test]
async fn an_answer_that_was_stored_under_another_policy_is_told_to_nobody() {
    let mut site = Site::start("").await;
    let request = post("/do/201", "k", "{}");
    assert_eq!(site.ask(&request).await.status, 201);
    // As a queue's consumer of the same name stores it that compares canonical JSON.
    let stored =
        "update oncely.idempotency_keys set fingerprint = '\\x5601d651'::bytea || substr(fingerprint, 5)";
    sqlx::query(stored).execute(&mut site.world.sql).await.unwrap();
    for request in [request, post("/do/201", "k", "{ }")] {
        let refused = site.ask(&request).await;
        assert_eq!(refused.said(), (422, "key-reused".to_owned()), "{refused:?}");
    }
    assert_eq!(site.upstream.calls().len(), 1);
    site.stop().await;
}
