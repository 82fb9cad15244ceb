//! Recent actions of users: a requeue of thousands of letters is recorded step by step, and shown as one action.

use chrono::{DateTime, Duration, Utc};

use oncely_postgres::ActionRow;

/// Maximum time between two steps of one action.
const APART: Duration = Duration::minutes(5);

/// Merges the steps of each action, and keeps the newest `most`. `actions`: the newest first.
pub(super) fn merge_steps(actions: Vec<ActionRow>, most: usize) -> Vec<ActionRow> {
    // With the time of the oldest step so far.
    let mut all: Vec<(ActionRow, DateTime<Utc>)> = Vec::new();
    for action in actions {
        let same = all.iter_mut().find(|(known, oldest)| {
            (&known.actor, &known.verb, &known.filter, &known.reason)
                == (&action.actor, &action.verb, &action.filter, &action.reason)
                && *oldest - action.occurred_at < APART
        });
        match same {
            Some((known, oldest)) => {
                known.count = known.count.saturating_add(action.count);
                if known.tenant != action.tenant {
                    known.tenant.clear();
                }
                *oldest = action.occurred_at;
            }
            None => {
                let at = action.occurred_at;
                all.push((action, at));
            }
        }
    }
    all.into_iter().take(most).map(|(action, _)| action).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_one_requeue_are_one_line_and_another_one_later_is_its_own() {
        let action = |seconds: i64, verb: &str, filter: &str, tenant: &str| ActionRow {
            tenant: tenant.to_owned(),
            occurred_at: DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap(),
            actor: "ana".to_owned(),
            verb: verb.to_owned(),
            filter: filter.to_owned(),
            count: 100,
            reason: None,
        };
        let all = vec![
            action(900, "requeue", "{1}", "acme"),
            action(890, "requeue", "{2}", "acme"),
            action(880, "requeue", "{1}", "globex"),
            action(870, "discard", "{1}", "acme"),
            action(700, "requeue", "{1}", "acme"),
            action(0, "requeue", "{1}", "acme"),
        ];
        let told = merge_steps(all, 3);
        let short: Vec<_> = told.iter().map(|a| (a.verb.as_str(), a.filter.as_str(), a.count)).collect();
        assert_eq!(short, [("requeue", "{1}", 300), ("requeue", "{2}", 100), ("discard", "{1}", 100)]);
        assert_eq!((told[0].tenant.as_str(), told[0].occurred_at.timestamp()), ("", 1_800_000_900));
    }
}
