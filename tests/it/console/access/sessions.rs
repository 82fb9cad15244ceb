//! How somebody comes in, and is out again.

use std::os::unix::fs::PermissionsExt as _;

use testbed::eventually;

use super::{OPERATOR, VIEWER, by_token, with_tokens};
use crate::console::{Running, console, document, follow};
use crate::support::World;

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
