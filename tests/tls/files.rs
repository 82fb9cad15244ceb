//! What is wrong with a file is said at the start, all of it, and nothing of what it holds.

use oncely::config::Config;
use testbed::Authority;

use crate::servers::Files;

fn problems(files: &Files, settings: &str) -> Vec<(String, String)> {
    let text = format!(
        "[postgres]\nurl = \"postgres://u@db/d\"\n[redis]\nurl = \"rediss://cache\"\n[rabbitmq]\nurl = \"amqps://broker\"\ntls = {{ {settings} }}\n"
    );
    let text = text.replace("FOLDER", &files.folder().display().to_string());
    let problems =
        Config::parse(&text.replace("postgres://u@db/d", "postgres://u@db/d?sslmode=require")).err();
    let problems = problems.into_iter().flat_map(|problems| problems.list().to_vec());
    problems.map(|problem| (problem.place, problem.message)).collect()
}

#[test]
fn each_file_that_is_of_no_use_is_named_with_the_reason_and_nothing_of_it_is_shown() {
    let authority = Authority::new("ours").unwrap();
    let good = authority.issue("app", &[]).unwrap();
    let other = authority.issue("app", &[]).unwrap();
    let files = Files::new(&good);
    let write = |name: &str, text: &str| std::fs::write(files.path(name), text).unwrap();
    write("empty.pem", "");
    write("cut.pem", &good.cert[..good.cert.len() / 2]);
    write("text.pem", "S3CR3T");
    write("other.pem", &other.key);
    write("encrypted.pem", &good.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"));
    write("garbled.pem", &good.key.replace("\nMI", "\n!S3CR3T"));

    let all = "ca = \"FOLDER/ca.pem\", cert = \"FOLDER/cert.pem\", key = \"FOLDER/key.pem\"";
    assert_eq!(problems(&files, all), []);
    assert_eq!(problems(&files, ""), []);
    for (settings, place, what) in [
        ("ca = \"FOLDER/none.pem\"", "rabbitmq.tls.ca", "none.pem: can't be read: No such file"),
        ("ca = \"FOLDER/empty.pem\"", "rabbitmq.tls.ca", "empty.pem: holds no certificate"),
        ("ca = \"FOLDER/text.pem\"", "rabbitmq.tls.ca", "text.pem: holds no certificate"),
        ("ca = \"FOLDER/key.pem\"", "rabbitmq.tls.ca", "key.pem: holds no certificate"),
        ("ca = \"FOLDER/cut.pem\"", "rabbitmq.tls.ca", "cut.pem: is cut off"),
        ("cert = \"FOLDER/cert.pem\"", "rabbitmq.tls.key", "is missing"),
        ("key = \"FOLDER/key.pem\"", "rabbitmq.tls.cert", "is missing"),
        ("cert = \"FOLDER/cert.pem\", key = \"FOLDER/cert.pem\"", "rabbitmq.tls.key", "holds no private key"),
        (
            "cert = \"FOLDER/cert.pem\", key = \"FOLDER/encrypted.pem\"",
            "rabbitmq.tls.key",
            "holds no private key",
        ),
        (
            "cert = \"FOLDER/cert.pem\", key = \"FOLDER/garbled.pem\"",
            "rabbitmq.tls.key",
            "garbled.pem: is not PEM",
        ),
        (
            "cert = \"FOLDER/cert.pem\", key = \"FOLDER/other.pem\"",
            "rabbitmq.tls.key",
            "is not the key of the certificate",
        ),
        ("server_name = \"not a name\"", "rabbitmq.tls.server_name", "is not the name of a machine"),
        ("cacert = \"x\"", "rabbitmq.tls.cacert", "unknown key"),
    ] {
        let found = problems(&files, settings);
        assert!(found.iter().any(|(at, why)| at == place && why.contains(what)), "{settings}: {found:?}");
        assert!(!format!("{found:?}").contains("S3CR3T"), "{found:?}");
    }
    // All at once.
    let found =
        problems(&files, "ca = \"FOLDER/none.pem\", cert = \"FOLDER/empty.pem\", key = \"FOLDER/text.pem\"");
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn the_files_of_an_url_of_libpq_count_and_are_looked_at_as_well() {
    let files = Files::new(&Authority::new("ours").unwrap().issue("app", &[]).unwrap());
    let parse = |query: &str| {
        let query = query.replace("FOLDER", &files.folder().display().to_string());
        let text = format!(
            "[postgres]\nurl = \"postgres://u@db/d?{query}\"\n[rabbitmq]\nurl = \"amqp://localhost\"\n"
        );
        Config::parse(&text).map(drop).map_err(|problems| problems.to_string())
    };
    parse("sslmode=verify-full&sslrootcert=FOLDER/ca.pem&sslcert=FOLDER/cert.pem&sslkey=FOLDER/key.pem")
        .unwrap();
    let refused = parse("sslrootcert=FOLDER/none.pem").unwrap_err();
    assert!(refused.contains("postgres.url: ") && refused.contains("none.pem: can't be read"), "{refused}");
    let refused = parse("sslmode=verify-full&sslcert=FOLDER/cert.pem").unwrap_err();
    assert!(refused.contains("names one of sslcert and sslkey"), "{refused}");
}

#[test]
fn certificates_that_nobody_uses_are_a_mistake() {
    let refused = Config::parse(
        "[postgres]\nurl = \"postgres://u@localhost/d\"\ntls = { server_name = \"db\" }\n[rabbitmq]\nurl = \"amqp://localhost\"\ntls = {}\n\
         [redis]\nurl = \"redis://localhost\"\ntls = {}\n[traces]\nendpoint = \"http://localhost:4318\"\ntls = {}\n",
    )
    .unwrap_err()
    .to_string();
    for what in [
        "postgres.tls.server_name: is not for PostgreSQL",
        "rabbitmq.tls: configures TLS, but no URL uses it",
        "redis.tls: configures TLS",
        "traces.",
    ] {
        assert!(refused.contains(what), "{what}: {refused}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused_all_at_once() {
    let files = Files::new(&Authority::new("ours").unwrap().issue("app", &[]).unwrap());
    let text = "
        [postgres]
        url = \"postgres://u:S3CR3T@db/d?sslmode=disable\"
        tls = { ca = \"FOLDER/ca.pem\", key = \"FOLDER/key.pem\", server_name = \"db\" }
        lock_timeout = \"1h\"
        [rabbitmq]
        url = \"amqp://localhost\"
        management = \"http://elsewhere:15672\"
        tls = { cert = \"FOLDER/cert.pem\" }
        heartbeat = \"0s\"
        [redis]
        url = \"redis://localhost\"
        tls = { key = \"FOLDER/key.pem\", server_name = \"not a name\" }
        [mirror]
        buckets = 0
        [traces]
        endpoint = \"http://localhost:4318\"
        tls = { ca = \"FOLDER/ca.pem\" }
    ";
    let refused = Config::parse(&text.replace("FOLDER", &files.folder().display().to_string()));
    let refused = refused.unwrap_err().to_string();
    for what in [
        "postgres.url: has certificates and an sslmode that uses none",
        "postgres.tls.cert: is missing",
        "postgres.tls.server_name: is not for PostgreSQL",
        "postgres.lock_timeout: ",
        "rabbitmq.management: goes to elsewhere in plaintext",
        "rabbitmq.tls.key: is missing",
        "rabbitmq.heartbeat: ",
        "redis.tls: configures TLS, but no URL uses it",
        "redis.tls.cert: is missing",
        "redis.tls.server_name: is not the name of a machine",
        "mirror.buckets: ",
        "traces.tls: configures TLS, but the endpoint does not use it",
    ] {
        assert!(refused.contains(what), "{what}: {refused}");
    }
    assert!(!refused.contains("S3CR3T"), "{refused}");
    // A word that says both of one file.
    let twice = "[postgres]\nurl = \"postgres://u@db/d?sslrootcert=/other/ca.pem\"\ntls = { ca = \"FOLDER/ca.pem\" }\n\
                 [rabbitmq]\nurl = \"amqp://localhost\"\n";
    let refused = Config::parse(&twice.replace("FOLDER", &files.folder().display().to_string()));
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("postgres.url: names another file by sslrootcert than postgres.tls does"),
        "{refused}"
    );
}
