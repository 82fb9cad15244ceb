//! Where a request comes from: another site's page, another address, a proxy.

use std::os::unix::fs::PermissionsExt as _;

use super::OPERATOR;
use crate::console::{Client, Running, console, crawl, furnish};
use crate::support::World;

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
async fn another_address_is_refused_without_a_way_to_tell_people_apart_and_without_tls() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    for (arguments, parts) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            &["without authentication", "the URL under which browsers", "in plaintext"][..],
        ),
        (
            &["--listen", "0.0.0.0:0", "--insecure-plaintext"],
            &["without authentication", "the URL under which browsers"],
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
    refused("is accessible to all users").await;
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
