//! Who gets in, and what they may do.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use testbed::eventually;

use super::{Client, Running, console, crawl, document, follow, furnish, signed_in};
use crate::support::{Login, World};

/// Pages that stand for themselves.
const PAGES: [&str; 9] = [
    "/",
    "/keys",
    "/keys?q=order-1",
    "/failed",
    "/failed/letters",
    "/outbox",
    "/consumers",
    "/consumer?name=payments",
    "/doctor",
];
/// What is done by forms.
const FORMS: [&str; 7] = [
    "/consumer/pause",
    "/consumer/resume",
    "/failed/operate",
    "/failed/stop",
    "/failed/reveal",
    "/key/reveal",
    "/outbox/change",
];

const VIEWER: &str = "0123456789abcdef01234567";
const OPERATOR: &str = "abcdef0123456789abcdef01";

/// A world whose console knows ana, who may look, and bo, who may act.
async fn with_tokens() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let file = world.file().with_file_name("tokens");
    std::fs::write(&file, format!("viewer ana {VIEWER}\noperator bo {OPERATOR}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    world.configure(&format!("[console]\ntokens = {:?}", file.display().to_string()));
    world.register("payments", "7 days").await;
    world
}

async fn by_token(client: &Client, token: &str) -> Client {
    let answer = client.post("/login", &[("token", token)]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    signed_in(client, &answer)
}

#[tokio::test]
async fn each_role_gets_what_it_may_and_nothing_else() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let stranger = &running.stranger;
    let (viewer, operator) = (by_token(stranger, VIEWER).await, by_token(stranger, OPERATOR).await);
    for page in PAGES {
        assert_eq!(stranger.get(page).await.status, 401, "{page}");
        for known in [&viewer, &operator] {
            assert_eq!(known.get(page).await.status, 200, "{page}");
            for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"] {
                assert_eq!(known.send(method, page, &[], None).await.status, 405, "{method} {page}");
            }
        }
        let posted = operator.submit(page, &[]).await;
        assert_eq!(posted.status, 405, "POST {page}");
    }
    for form in FORMS {
        assert_eq!(stranger.post(form, &[]).await.status, 401, "{form}");
        assert_eq!(viewer.submit(form, &[]).await.status, 403, "{form}");
        assert_eq!(viewer.get(form).await.status, 405, "{form}");
        let asked = operator.submit(form, &[]).await.status;
        assert!([400, 404].contains(&asked), "{form}: {asked}: it misses what it needs, and nobody's role");
    }
    assert_eq!(operator.get("/nowhere").await.status, 404);
    assert_eq!(
        stranger.get("/nowhere").await.status,
        401,
        "whoever is outside learns nothing of what is inside"
    );
    assert_eq!(stranger.get("/assets/nothing.js").await.status, 404);
    // Nothing of the pages is told to whoever has not come in.
    assert!(!stranger.get("/").await.body.contains("payments"));
}

#[tokio::test]
async fn a_viewer_sees_no_button_that_does_something() {
    let mut world = with_tokens().await;
    furnish(&mut world).await;
    let running = Running::start(&world, &[], &[]).await;
    let viewer = by_token(&running.stranger, VIEWER).await;
    let pages = crawl(&viewer, &["/"], 150).await;
    assert!(pages.len() > 30, "{}", pages.len());
    for (path, answer) in pages {
        if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html")) {
            for form in document::elements(&answer.body).iter().filter(|element| element.name == "form") {
                let is_harmless = form.get("method").is_none() || form.get("action") == Some("/logout");
                assert!(is_harmless, "{path}: {form:?}");
            }
            assert!(!answer.body.contains("/failed/plan"), "{path}");
        }
    }
}

#[tokio::test]
async fn the_link_is_good_once_and_another_is_printed_where_it_was_started() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    assert_eq!(operator.get("/").await.status, 200);
    let used = running.links().pop().unwrap();
    for link in [used.as_str(), "/login?token=0000"] {
        let answer = follow(&running.stranger, link).await;
        assert_eq!((answer.status, answer.header("set-cookie")), (401, None), "{link}");
    }
    for link in ["/login?token=", "/login"] {
        assert_eq!(running.stranger.get(link).await.status, 401, "{link}");
    }
    // Right after the last one there is none: nobody fills a terminal.
    eventually("another link", || async {
        running.stranger.post("/login", &[("renew", "1")]).await;
        match running.links().len() {
            2 => Ok(()),
            count => Err(format!("{count} links")),
        }
    })
    .await
    .unwrap();
    let another = running.links().pop().unwrap();
    // Looks of whatever kind leave it good, and so does another link.
    for method in ["HEAD", "GET"] {
        for mode in ["no-cors", "navigate"] {
            let headers = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", mode)];
            let looked = running.stranger.send(method, &another, &headers, None).await;
            assert_eq!(looked.header("set-cookie"), None, "{method} {mode}");
        }
    }
    eventually("a third link", || async {
        running.stranger.post("/login", &[("renew", "1")]).await;
        if running.links().len() == 3 { Ok(()) } else { Err("no third link") }
    })
    .await
    .unwrap();
    let cookie = follow(&running.stranger, &another).await;
    let cookie = cookie.header("set-cookie").unwrap();
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert_eq!(follow(&running.stranger, &another).await.status, 401, "used");
}

#[tokio::test]
async fn another_sites_page_gets_nothing_done() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.register("payments", "7 days").await;
    let (running, operator) = console(&world).await;
    let token = operator.token().await;
    let own = format!("http://{}", operator.host);
    let fields =
        [("csrf", token.as_str()), ("name", "payments"), ("reason", "why"), ("for", "until-resumed")];
    let pause = async |headers: &[(&str, &str)], fields: &[(&str, &str)]| {
        operator.post_with("/consumer/pause", headers, fields).await.status
    };
    for origin in [
        "http://evil.example",
        "null",
        "https://127.0.0.1",
        &own.replace("http:", "https:"),
        "http://localhost:1",
    ] {
        assert_eq!(pause(&[("Origin", origin)], &fields).await, 403, "{origin}");
        assert_eq!(operator.send("GET", "/", &[("Origin", origin)], None).await.status, 403, "{origin}");
    }
    assert_eq!(
        pause(&[("Origin", &own), ("Origin", "http://evil.example")], &fields).await,
        403,
        "two origins"
    );
    assert_eq!(pause(&[("Origin", &own), ("Sec-Fetch-Site", "cross-site")], &fields).await, 403);
    assert_eq!(pause(&[("Sec-Fetch-Site", "same-site")], &fields).await, 403);
    assert_eq!(pause(&[], &fields).await, 403, "a browser says where a form was");
    let headers = [("Origin", own.as_str())];
    assert_eq!(pause(&headers, &fields[1..]).await, 403, "without the form's token");
    assert_eq!(pause(&headers, &[("csrf", "0"), fields[1], fields[2], fields[3]]).await, 403);
    let other = Running::start(&world, &[], &[]).await;
    let stolen = other.operator().await.token().await;
    assert_eq!(
        pause(&headers, &[("csrf", &stolen), fields[1], fields[2], fields[3]]).await,
        403,
        "of another session"
    );
    let json = operator
        .send(
            "POST",
            "/consumer/pause",
            &[("Origin", &own), ("Content-Type", "application/json")],
            Some("{}"),
        )
        .await;
    assert_eq!(json.status, 415);
    assert_eq!(world.count("select count(*) from oncely.controls").await, 0);
    // Names that lead here by somebody else's name server.
    for host in ["evil.example", "127.0.0.1", "evil.example:80", ""] {
        let client = Client { host: host.to_owned(), ..operator.clone() };
        assert!([400, 421].contains(&client.get("/").await.status), "{host}");
    }
    let twice = operator.send("GET", "/", &[("Host", "evil.example")], None).await;
    assert_eq!(twice.status, 400);
    // And the real thing.
    assert_eq!(pause(&headers, &fields).await, 303);
    assert_eq!(world.count("select count(*) from oncely.controls").await, 1);
    drop(running);
}

#[tokio::test]
async fn every_answer_tells_the_browser_to_be_careful() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let style = operator.page("/").await.between("rel=\"stylesheet\" href=\"", "\"").to_owned();
    for (client, path) in [
        (&operator, "/"),
        (&operator, "/nowhere"),
        (&running.stranger, "/"),
        (&running.stranger, style.as_str()),
        (&operator, "/keys/export.csv"),
    ] {
        let answer = client.get(path).await;
        let policy = answer.header("content-security-policy").unwrap();
        for part in ["default-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"]
        {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("referrer-policy"), Some("same-origin"), "{path}");
        let cached = answer.header("cache-control").unwrap();
        assert_eq!(cached.contains("public"), path == style, "{path}: {cached}");
        assert!(path == style || cached == "no-store", "{path}: {cached}");
    }
}

#[tokio::test]
async fn whoever_signs_out_is_out_with_the_cookie_that_somebody_kept() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let viewer = by_token(&running.stranger, VIEWER).await;
    let other = by_token(&running.stranger, VIEWER).await;
    let answer = viewer.submit("/logout", &[]).await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/login")));
    assert!(answer.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(viewer.get("/").await.status, 401);
    assert_eq!(other.get("/").await.status, 200);
}

#[tokio::test]
async fn a_token_comes_by_a_form_and_leads_to_where_somebody_wanted_to_go_within_the_console() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let stranger = &running.stranger;
    assert_eq!(stranger.post("/login", &[("token", "0123456789abcdef01234568")]).await.status, 401);
    assert_eq!(stranger.get(&format!("/login?token={VIEWER}")).await.status, 401, "no history has it");
    let asked = stranger.get("/keys?q=a%2Fb").await;
    assert_eq!(document::plain(asked.between("name=\"next\" value=\"", "\"")), "/keys?q=a%2Fb");
    for (next, to) in [
        ("/keys?q=a%2Fb", "/keys?q=a%2Fb"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("/\t/evil.example", "/"),
        ("/x\r\nSet-Cookie: a=b", "/"),
    ] {
        let answer = stranger.post("/login", &[("token", VIEWER), ("next", next)]).await;
        assert!(!answer.header("set-cookie").unwrap().contains("a=b"), "{next}");
        assert!(answer.body.contains(&format!("content=\"0; url={to}\"")), "{next}: {}", answer.body);
    }
    // A link on another site's page: the browser keeps the cookie back for that one step, so there is one more of our own.
    let viewer = by_token(stranger, VIEWER).await;
    let headers = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")];
    for elsewhere in ["//evil.example/x", "/\\evil.example/x"] {
        let answer = stranger.send("GET", elsewhere, &headers, None).await;
        assert!(
            answer.status >= 400 && !answer.body.contains("evil.example"),
            "{elsewhere}: {}",
            answer.body
        );
    }
    let step = stranger.send("GET", "/failed?since=2h", &headers, None).await;
    assert!(step.status == 200 && step.body.contains("content=\"0; url=/failed?since=2h\""), "{}", step.body);
    assert!(
        viewer.send("GET", "/failed", &headers, None).await.body.contains("Dead letters"),
        "with its cookie at once"
    );
}

#[tokio::test]
async fn what_the_postgresql_role_forbids_is_neither_offered_nor_done() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    furnish(&mut world).await;
    let auditor = Login::create(&mut world, "oncely_auditor").await;
    let running = Running::start(&world, &[], &auditor.environment()).await;
    let operator = running.operator().await;
    let pages = crawl(&operator, &["/"], 150).await;
    assert!(pages.len() > 30);
    for (path, answer) in &pages {
        assert!(!answer.body.contains("/failed/plan") && !answer.body.contains("/failed/operate"), "{path}");
        assert!(
            !answer.body.contains("geheim") && !answer.body.contains("action=\"/consumer/pause\""),
            "{path}"
        );
        assert!(!answer.body.contains("/reveal\""), "{path}");
    }
    let id =
        world.text("select id::text from oncely.dead_letters where state = 'waiting' limit 1").await.unwrap();
    for (path, fields) in [
        ("/consumer/pause", vec![("name", "payments"), ("reason", "why")]),
        ("/consumer/resume", vec![("name", "payments")]),
        ("/failed/operate", vec![("change", "discard"), ("id", &id), ("note", "why"), ("typed", "1")]),
        ("/failed/reveal", vec![("id", &id)]),
        ("/key/reveal", vec![("key", "key-1")]),
        (
            "/outbox/change",
            vec![("change", "discard"), ("note", "why"), ("typed", "3"), ("before", "9000000000000000")],
        ),
    ] {
        let answer = operator.submit(path, &fields).await;
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert!(answer.body.contains(&auditor.name), "{path} names the login: {}", answer.body);
    }
    assert_eq!(operator.get(&format!("/failed/plan?change=requeue&id={id}")).await.status, 403);
    let untouched = "select (select count(*) from oncely.controls) + (select count(*) from oncely.operator_actions) + (select count(*) from oncely.events)";
    assert_eq!(world.count(untouched).await, 4);
    drop(running);
    auditor.drop_now(&mut world).await;
}

#[tokio::test]
async fn another_address_is_refused_without_a_way_to_tell_people_apart_and_without_tls() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    for (arguments, parts) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            &["anybody there could come in", "under which URL", "speaks no TLS"][..],
        ),
        (
            &["--listen", "0.0.0.0:0", "--insecure-plaintext"],
            &["anybody there could come in", "under which URL"],
        ),
    ] {
        let output = world.oncely(&[&["console"], arguments].concat()).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{told}");
        assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    }
    let tokens = world.file().with_file_name("tokens");
    std::fs::write(&tokens, format!("operator bo {OPERATOR}\nviewer ana short\n")).unwrap();
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o604)).unwrap();
    world.configure(&format!(
        "[console]\nurl = \"https://ops.example.com\"\ntokens = {:?}",
        tokens.display().to_string()
    ));
    let refused = async |part: &str| {
        let output = world.oncely(&["console", "--listen", "127.0.0.1:0"]).await;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{told}");
        assert!(told.contains(part) && !told.contains(OPERATOR), "{told}");
    };
    refused("may be read or changed by everybody").await;
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    refused("line 2: has a token of less than 24 characters").await;
}

#[tokio::test]
async fn behind_a_proxy_its_word_counts_and_the_base_path_is_everywhere() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let secret = world.file().with_file_name("proxy-secret");
    std::fs::write(&secret, OPERATOR).unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    world.configure(&format!(
        "[console]\nurl = \"https://ops.example.com/oncely\"\nproxy = {{ header = \"x-forwarded-user\", from = [\"127.0.0.0/8\"], operators = [\"bo\"], \
         secret = {{ header = \"x-oncely-proxy\", file = {:?} }} }}",
        secret.display().to_string()
    ));
    furnish(&mut world).await;
    let running = Running::start(&world, &[], &[]).await;
    let stranger = Client { host: "ops.example.com".to_owned(), ..running.stranger.clone() };
    let named = |name: &str| Client {
        more: vec![
            ("X-Forwarded-User".to_owned(), name.to_owned()),
            ("X-Oncely-Proxy".to_owned(), OPERATOR.to_owned()),
        ],
        ..stranger.clone()
    };
    // Whoever else is on this machine says the same, and does not know the proxy's secret.
    let forged = Client { more: vec![("X-Forwarded-User".to_owned(), "bo".to_owned())], ..stranger.clone() };
    assert_eq!(forged.get("/oncely/").await.status, 401);
    assert_eq!(stranger.get("/oncely/").await.status, 401);
    assert_eq!(running.stranger.get("/oncely/").await.status, 421, "by its address");
    let (ana, bo) = (named("ana"), named("bo"));
    assert_eq!(ana.get("/").await.status, 404, "outside of the base path");
    assert_eq!(ana.get("/oncelyx").await.status, 404);
    let to = ana.get("/oncely").await;
    assert_eq!((to.status, to.header("location")), (303, Some("/oncely/")));
    let pages = crawl(&ana, &["/oncely/"], 150).await;
    assert!(pages.len() > 30 && pages.iter().all(|(path, _)| path.starts_with("/oncely/")));
    assert!(pages[0].1.body.contains("viewer") && bo.page("/oncely/").await.body.contains("operator"));
    // A form of bo's, and the same of ana's.
    let token = bo.page("/oncely/doctor").await.between("name=\"csrf\" value=\"", "\"").to_owned();
    let fields =
        [("csrf", token.as_str()), ("name", "payments"), ("reason", "why"), ("for", "until-resumed")];
    let origin = [("Origin", "https://ops.example.com")];
    assert_eq!(ana.post_with("/oncely/consumer/pause", &origin, &fields).await.status, 403);
    assert_eq!(
        bo.post_with("/oncely/consumer/pause", &[("Origin", "http://ops.example.com")], &fields).await.status,
        403
    );
    let done = bo.post_with("/oncely/consumer/pause", &origin, &fields).await;
    assert_eq!((done.status, done.header("location")), (303, Some("/oncely/consumer?name=payments")));
    let recorded = "select reason from oncely.controls where paused_by like '% (bo, console)'";
    assert_eq!(world.text(recorded).await.as_deref(), Some("why"));
    // From elsewhere the header is anybody's own.
    world.reconfigure("127.0.0.0/8", "10.0.0.0/8");
    let far = Running::start(&world, &[], &[]).await;
    let bo = Client { address: far.stranger.address.clone(), ..bo };
    let mut refused = bo.open("GET", "/oncely/", &[], None).await;
    let mut told = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut refused, &mut told).await;
    assert_eq!(String::from_utf8_lossy(&told), "", "not a byte is answered");
}

#[tokio::test]
async fn connections_that_read_nothing_keep_nobody_out() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let script = operator.page("/").await.between("src=\"/assets/htmx-", "\"").to_owned();
    let script = format!("/assets/htmx-{script}");
    let mut idle = Vec::new();
    for _ in 0..220 {
        let mut stream = tokio::net::TcpStream::connect(&operator.address).await.unwrap();
        let request = format!("GET {script} HTTP/1.1\r\nHost: {}\r\n\r\n", operator.host).repeat(300);
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await;
        idle.push(stream);
    }
    for _ in 0..5 {
        let answered = tokio::time::timeout(Duration::from_secs(20), operator.get("/doctor")).await;
        assert_eq!(answered.expect("an answer").status, 200);
    }
    drop((running, idle));
}

#[tokio::test]
async fn nobody_follows_the_trail_more_than_three_times_nor_longer_than_their_session() {
    let world = with_tokens().await;
    let running = Running::start(&world, &[], &[]).await;
    let viewer = by_token(&running.stranger, VIEWER).await;
    let mut tails = Vec::new();
    for _ in 0..3 {
        let mut tail = viewer.open("GET", "/keys/tail", &[], None).await;
        let mut byte = [0];
        tokio::io::AsyncReadExt::read_exact(&mut tail, &mut byte).await.unwrap();
        tails.push(tail);
    }
    assert_eq!(viewer.get("/keys/tail").await.status, 429);
    assert_eq!(viewer.get("/doctor").await.status, 200);
    viewer.submit("/logout", &[]).await;
    for tail in &mut tails {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(
            Duration::from_secs(20),
            tokio::io::AsyncReadExt::read_to_end(tail, &mut rest),
        );
        assert!(ended.await.is_ok(), "it goes on after its session");
    }
}

#[tokio::test]
async fn with_a_key_of_its_own_a_restarted_console_knows_nobody_who_was_taken_out_of_the_file() {
    let world = with_tokens().await;
    let key = [("ONCELY_CONSOLE__KEY", "0123456789abcdef0123".to_owned())];
    let running = Running::start(&world, &[], &key).await;
    let port = running.stranger.address.clone();
    let bo = by_token(&running.stranger, OPERATOR).await;
    assert_eq!(bo.get("/").await.status, 200);
    drop(running);
    let file = world.file().with_file_name("tokens");
    std::fs::write(&file, format!("viewer ana {VIEWER}\n")).unwrap();
    let again = Running::start(&world, &["--listen", &port], &key).await;
    assert_eq!(bo.get("/").await.status, 401);
    std::fs::write(&file, format!("viewer bo {OPERATOR}\n")).unwrap();
    assert!(bo.page("/").await.body.contains("viewer"), "what they may do is in the file");
    drop(again);
}

#[tokio::test]
async fn the_browser_is_opened_with_a_page_that_nobody_else_reads() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let folder = world.file().with_file_name("bin");
    std::fs::create_dir(&folder).unwrap();
    let (opener, told) = (folder.join("xdg-open"), folder.join("told"));
    let script = format!(
        "#!/bin/sh\necho \"$1\" > {0}.new\nstat -c %a \"$1\" \"$(dirname \"$1\")\" >> {0}.new\ncat \"$1\" >> {0}.new\nmv {0}.new {0}\n",
        told.display()
    );
    std::fs::write(&opener, script).unwrap();
    std::fs::set_permissions(&opener, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let running = Running::start(&world, &["--open"], &[("PATH", path)]).await;
    let said =
        eventually("a browser", || async { std::fs::read_to_string(&told).map_err(|e| e.to_string()) });
    let said = said.await.unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(!lines[0].contains("token"), "every user reads the arguments of a process: {}", lines[0]);
    assert_eq!(lines[1..3], ["600", "700"]);
    assert!(said.contains(&running.links()[0]), "{said}");
}

#[tokio::test]
async fn what_is_too_large_or_never_comes_holds_nothing_up() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let (running, operator) = console(&world).await;
    let large = "x".repeat(70_000);
    assert_eq!(operator.submit("/consumer/pause", &[("name", &large)]).await.status, 413);
    assert!([414, 431].contains(&operator.get(&format!("/keys?q={large}")).await.status));
    // Connections that say nothing: others are answered meanwhile.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(tokio::net::TcpStream::connect(&operator.address).await.unwrap());
    }
    let answered = tokio::time::timeout(Duration::from_secs(10), operator.get("/doctor")).await;
    assert_eq!(answered.unwrap().status, 200);
    drop(running);
}
