//! Recent actions of users: a requeue of thousands of letters is recorded step by step, and shown as one action.

use chrono::{DateTime, Duration, Utc};

use oncely_postgres::ActionRow;

/// Maximum time between two steps of one action.
const MAX_STEP_INTERVAL: Duration = Duration::minutes(5);

/// Merges the steps of each action, and keeps the newest `limit` actions. `actions`: the newest first.
pub(super) fn merge_steps(actions: Vec<ActionRow>, limit: usize) -> Vec<ActionRow> {
    // With the time of the oldest step so far.
    let mut merged: Vec<(ActionRow, DateTime<Utc>)> = Vec::new();
    for action in actions {
        let earlier = merged.iter_mut().find(|(merged_action, oldest)| {
            (&merged_action.actor, &merged_action.verb, &merged_action.filter, &merged_action.reason)
                == (&action.actor, &action.verb, &action.filter, &action.reason)
                && *oldest - action.occurred_at < MAX_STEP_INTERVAL
        });
        match earlier {
            Some((merged_action, oldest)) => {
                merged_action.count = merged_action.count.saturating_add(action.count);
                if merged_action.tenant != action.tenant {
                    merged_action.tenant.clear();
                }
                *oldest = action.occurred_at;
            }
            None => {
                let at = action.occurred_at;
                merged.push((action, at));
            }
        }
    }
    merged.into_iter().take(limit).map(|(action, _)| action).collect()
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
        let merged = merge_steps(all, 3);
        let short: Vec<_> = merged.iter().map(|a| (a.verb.as_str(), a.filter.as_str(), a.count)).collect();
        assert_eq!(short, [("requeue", "{1}", 300), ("requeue", "{2}", 100), ("discard", "{1}", 100)]);
        assert_eq!((merged[0].tenant.as_str(), merged[0].occurred_at.timestamp()), ("", 1_800_000_900));
    }
}
