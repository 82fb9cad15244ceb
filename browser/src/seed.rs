//! What has happened before somebody looks: effects, duplicates, refusals, a conflict, groups of dead letters, parked events, and names that
//! mean harm.

use crate::site::Site;

/// A failed group of its own for each check that requeues one: three payments at a till.
pub(crate) const TILLS: [&str; 3] = ["north", "south", "east"];
/// And one that stays.
pub(crate) const CLOSED: &str = "market";
/// Whose messages mean harm.
pub(crate) const HOSTILE_TENANT: &str = "<b data-hostile>acme</b>\u{202e}";

/// The keys of a till's payments.
pub(crate) fn payments(till: &str) -> Vec<String> {
    (1..=3).map(|number| format!("{till}-{number}")).collect()
}

/// Keys that mean harm: each is a key like any other.
pub(crate) fn hostile_keys() -> Vec<String> {
    [
        "<script>window.hostile = true</script>",
        "\"'><img data-hostile src=x onerror=\"window.hostile = true\">",
        "invoice-\u{202e}fdp.exe\u{2066}\u{200f}",
        "../a//b/?tenant=x&key=y#z",
        "two\nlines\r\n\tand a tab",
        "100%00 %2F %zz + ;",
        "  tenant:acme since:2h ",
        "javascript:window.hostile=true",
        "Ω≈ç√∫ 注文 طلب 👩‍👩‍👧",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([format!("long-{}", "k".repeat(250))])
    .collect()
}

/// A key as it may be shown: nothing in it is hidden, or turns round what stands beside it.
pub(crate) fn shown(key: &str) -> String {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    key.chars().map(|c| if is_hidden(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

/// Publishes it all, and waits until all of it is decided.
pub(crate) async fn sow(site: &Site) -> anyhow::Result<()> {
    let hostile = hostile_keys();
    let mut locked: Vec<String> = TILLS.iter().chain([&CLOSED]).flat_map(|till| payments(till)).collect();
    let failing = locked.len() + hostile.len();
    locked.extend(hostile.iter().cloned());
    site.lock(&locked.iter().map(String::as_str).collect::<Vec<_>>()).await?;

    let tenants = ["acme", "globex", "initech"];
    let orders: Vec<_> = (0..40)
        .map(|number| {
            let cents = if number % 13 == 12 { 0 } else { 1_250 + number * 75 };
            (tenants[number % 3], format!("order-{}", 1001 + number), format!(r#"{{"cents": {cents}}}"#))
        })
        .collect();
    let all: Vec<_> =
        orders.iter().map(|(tenant, key, body)| (*tenant, key.as_str(), body.clone())).collect();
    site.publish("payments", &all).await?;
    site.publish("ledger", &all).await?;
    site.publish("emails", &all[..7]).await?;
    let done = 40 + 40 + 7;
    site.wait_for("select count(*) from oncely.idempotency_keys where status = 'COMPLETED'", done).await?;
    // A second time, and one of them with another payload.
    site.publish("payments", &all[..12]).await?;
    site.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 12).await?;
    site.publish("payments", &[("acme", "order-1001", r#"{"cents": 999999}"#.to_owned())]).await?;

    for till in TILLS.iter().chain([&CLOSED]) {
        let keys = payments(till);
        let messages =
            keys.iter().map(|key| ("acme", key.as_str(), format!(r#"{{"cents": 700, "till": "{till}"}}"#)));
        site.publish("payments", &messages.collect::<Vec<_>>()).await?;
    }
    let harm = r#"{"cents": 1, "till": "<i data-hostile>west</i>", "<script>window.hostile = true</script>": "\u202e</pre><img data-hostile src=x>"}"#;
    let harmful: Vec<_> = hostile.iter().map(|key| (HOSTILE_TENANT, key.as_str(), harm.to_owned())).collect();
    site.publish("payments", &harmful).await?;
    let letters = i64::try_from(failing)? + 1;
    let waiting = "select count(*) from oncely.dead_letters where state = 'waiting'";
    site.wait_beside_good_ones(waiting, letters).await?;
    // The same keys took effect elsewhere.
    let keys: Vec<&str> = hostile.iter().map(String::as_str).collect();
    site.unlock(&keys).await?;
    site.publish("ledger", &harmful).await?;
    site.wait_for(
        "select count(*) from oncely.idempotency_keys where status = 'COMPLETED' and consumer = 'ledger'",
        40 + i64::try_from(hostile.len())?,
    )
    .await?;
    site.lock(&keys).await?;

    // Nobody has such queues.
    site.execute(
        r#"select oncely.emit('', 'invoices', '{}', tenant => 'acme', ordering_key => 'customer-7');
        select oncely.emit('', '<script>window.hostile = true</script>', '{}', tenant => 'globex', ordering_key => U&'"><img data-hostile src=x>\202e');
        select oncely.emit('', 'reminders', '{}', tenant => 'acme', delay => '1 hour')"#,
    )
    .await?;
    site.wait_beside_good_ones("select count(*) from oncely.events where state = 'parked'", 2).await
}
