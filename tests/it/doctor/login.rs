//! What the doctor says of logins: those that may too little, and those that may too much.

use oncely::config::Config;
use oncely_doctor::{CheckSelection, Limits, Role, Verdict};
use secrecy::SecretString;

use super::{all, of, only, run, says};
use crate::support::{Login, World};

fn as_login(world: &World, login: &Login) -> Config {
    let mut config = world.config();
    config.postgres.url = SecretString::from(login.url.clone());
    config
}

#[tokio::test]
async fn a_login_with_the_role_of_its_work_and_nothing_else_is_fine_and_every_other_is_told() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    run(&mut world, "grant usage on schema app to public").await;
    let login = Login::create(&mut world, "oncely_worker").await;
    let config = as_login(&world, &login);
    let limits = Limits::default();
    for (check, verdict) in [
        ("pg.powers", Verdict::Ok),
        ("pg.grants", Verdict::Ok),
        ("pg.handler", Verdict::Ok),
        // It is no worker's business, and nobody takes it for fine.
        ("live.relay", Verdict::Skipped),
        ("data.identity", Verdict::Skipped),
        ("pg.xmin", Verdict::Skipped),
    ] {
        says(&config, &only(check, limits), check, verdict, "").await;
    }
    let name = login.name.clone();
    for (bad, check, verdict, part, mend) in [
        (
            "grant delete, truncate on oncely.audit to LOGIN",
            "pg.powers",
            Verdict::Warning,
            "may delete, truncate the trail",
            "revoke delete, truncate on oncely.audit from LOGIN",
        ),
        (
            "grant oncely_operator to LOGIN",
            "pg.powers",
            Verdict::Warning,
            "a process and an operator at once",
            "revoke oncely_operator from LOGIN",
        ),
        (
            "alter role LOGIN bypassrls createrole",
            "pg.powers",
            Verdict::Warning,
            "skips row-level security",
            "alter role LOGIN nobypassrls nocreaterole",
        ),
        (
            "grant create on schema oncely to LOGIN",
            "pg.powers",
            Verdict::Warning,
            "may create objects in the schema",
            "revoke create on schema oncely from LOGIN",
        ),
        (
            "alter role LOGIN superuser",
            "pg.powers",
            Verdict::Warning,
            "is a superuser",
            "alter role LOGIN nosuperuser",
        ),
        (
            "revoke insert on oncely.mirror_queue from oncely_worker",
            "pg.grants",
            Verdict::Error,
            "lacks insert on oncely.mirror_queue",
            "grant insert on oncely.mirror_queue to oncely_worker",
        ),
        (
            "revoke usage on schema app from public",
            "pg.handler",
            Verdict::Error,
            "may not use the schema of app.handle",
            "grant usage on schema app to public",
        ),
    ] {
        run(&mut world, &bad.replace("LOGIN", &name)).await;
        says(&config, &only(check, limits), check, verdict, part).await;
        run(&mut world, &mend.replace("LOGIN", &name)).await;
        says(&config, &only(check, limits), check, Verdict::Ok, "").await;
    }
    let as_relay = CheckSelection { role: Some(Role::Relay), ..only("pg.grants", limits) };
    says(&config, &as_relay, "pg.grants", Verdict::Error, "lacks the role oncely_relay").await;
    login.drop_now(&mut world).await;
}

#[tokio::test]
async fn a_relay_s_login_looks_at_what_its_role_may_read_and_skips_the_rest() {
    let mut world = World::new().await;
    world.consumer("payments", "");
    world.apply_topology().await;
    let login = Login::create(&mut world, "oncely_relay").await;
    let report = all(&as_login(&world, &login)).await;
    assert_eq!(report.role, Role::Relay);
    for (check, verdict) in [
        ("pg.grants", Verdict::Ok),
        ("pg.powers", Verdict::Ok),
        ("pg.default_partition", Verdict::Ok),
        ("pg.partitions", Verdict::Ok),
        ("horizon", Verdict::Ok),
        ("mq.queue", Verdict::Ok),
        ("live.relay", Verdict::Warning),
        ("pg.handler", Verdict::Skipped),
        ("data.identity", Verdict::Skipped),
        ("live.paused", Verdict::Skipped),
    ] {
        let examined = of(&report, check);
        assert_eq!(examined.verdict, verdict, "{examined:#?}");
    }
    login.drop_now(&mut world).await;
}
