//! What is published: payments, some of them more than once.

use indicatif::ProgressBar;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use testbed::Broker;

/// A payment on its way.
#[derive(Clone, Debug)]
pub(crate) struct Payment {
    pub(crate) tenant: String,
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
}

/// Always the same payments for the same numbers: `percent` of them are copies of an earlier one, half of those close
/// behind it (a publisher that retries), half anywhere later (a redelivery after a while).
pub(crate) fn plan(messages: u32, percent: u32, tenants: u32) -> Vec<Payment> {
    let mut random = fastrand::Rng::with_seed(20_261_120);
    let copies = u64::from(messages) * u64::from(percent) / 100;
    let distinct = (u64::from(messages) - copies).max(1);
    let mut plan: Vec<Payment> = (0..distinct)
        .map(|number| {
            let tenant = format!("tenant-{:02}", random.u32(0..tenants));
            let amount = random.u32(100..100_000);
            let customer = random.u32(0..50);
            let body = format!(
                r#"{{"payment":"{number:08}","customer":{customer},"amount":{amount},"currency":"EUR","note":"{}"}}"#,
                "x".repeat(random.usize(0..200))
            );
            Payment { tenant, key: format!("payment-{number:08}"), body: body.into_bytes() }
        })
        .collect();
    for _ in 0..copies.min(u64::from(messages) - distinct) {
        let at = random.usize(0..plan.len());
        let copy = plan[at].clone();
        let later = if random.bool() {
            (at + random.usize(1..50)).min(plan.len())
        } else {
            random.usize(at + 1..=plan.len())
        };
        plan.insert(later, copy);
    }
    plan
}

/// How many different payments there are.
pub(crate) fn distinct(plan: &[Payment]) -> usize {
    plan.iter()
        .map(|payment| (&payment.tenant, &payment.key))
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

/// Publishes the plan with confirms, a window at a time.
pub(crate) async fn publish(
    url: String,
    queue: String,
    plan: &[Payment],
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let broker = Broker::connect(&url).await?;
    for window in plan.chunks(500) {
        let messages = window
            .iter()
            .map(|payment| {
                let mut headers = FieldTable::default();
                headers.insert("x-tenant-id".into(), AMQPValue::LongString(payment.tenant.as_str().into()));
                let properties = BasicProperties::default()
                    .with_message_id(payment.key.as_str().into())
                    .with_content_type("application/json".into())
                    .with_headers(headers);
                (queue.clone(), properties, payment.body.clone())
            })
            .collect();
        broker.publish_all("", messages).await?;
        bar.inc(window.len() as u64);
    }
    Ok(())
}
