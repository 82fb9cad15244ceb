//! What is published: payments, some of them more than once.

use testbed::checker::{Act, Intent};

/// Always the same payments for the same numbers: `percent` of them are copies of an earlier one, half of those close
/// behind it (a publisher that retries), half anywhere later (a redelivery after a while).
pub(crate) fn plan(messages: u32, percent: u32, tenants: u32) -> Vec<Intent> {
    let mut random = fastrand::Rng::with_seed(20_261_120);
    let copies = u64::from(messages) * u64::from(percent) / 100;
    let distinct = (u64::from(messages) - copies).max(1);
    let mut plan: Vec<Intent> = (0..distinct)
        .map(|number| {
            let tenant = format!("tenant-{:02}", random.u32(0..tenants));
            let (amount, customer) = (random.u32(100..100_000), random.u32(0..50));
            Intent::new(&tenant, &format!("payment-{number:08}"), Act::Work, 0)
                .payment(customer, amount)
                .padded(random.usize(0..200))
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
pub(crate) fn distinct(plan: &[Intent]) -> u64 {
    let payments = plan.iter().map(|payment| (&payment.tenant, &payment.key));
    payments.collect::<std::collections::BTreeSet<_>>().len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_what_was_asked_for() {
        for (messages, percent, wanted) in [(1_000, 30, 700), (1_000, 0, 1_000), (1, 95, 1), (20, 95, 1)] {
            let plan = plan(messages, percent, 3);
            assert_eq!((plan.len(), distinct(&plan)), (messages as usize, wanted), "{messages}, {percent} %");
        }
    }
}
