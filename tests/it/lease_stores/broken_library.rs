//! The functions in Redis with one care taken out: the suite names the cases that no longer hold. A green suite means as much as this table.

use std::collections::BTreeSet;

use oncely::lease::conformance;
use oncely::redis_store::{RedisSettings, RedisStore};
use testbed::Redis;

use super::clocks::RedisClock;
use super::redis_store::connect;

struct Mutant {
    name: &'static str,
    /// What of the library becomes what.
    from: &'static str,
    to: &'static str,
    /// One of the cases that must break.
    breaks: &'static str,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "redis_ttl_is_lease",
        from: "math.ceil(retention / 1000)) then",
        to: "math.ceil(lease / 1000)) then",
        breaks: "a_late_finish_without_a_takeover_stands",
    },
    Mutant {
        name: "redis_complete_without_token",
        from: "if s ~= 'H' or t ~= token then return { 'lost' } end",
        to: "",
        breaks: "a_frozen_holder_cannot_complete",
    },
    Mutant {
        name: "redis_release_without_token",
        from: "if is_held(record, token) then\n        free(record)",
        to: "if record then\n        free(record)",
        breaks: "a_frozen_holder_cannot_release",
    },
    Mutant {
        name: "redis_checkpoint_without_token",
        from: "known.state == 'started' and known.token == token",
        to: "known.state == 'started'",
        breaks: "a_frozen_holder_decides_nothing_about_a_call_of_another_run",
    },
    Mutant {
        name: "redis_late_result_is_lost",
        from: "return record and record.s ~= 'C' and",
        to: "return false and",
        breaks: "a_late_result_is_the_result_of_its_step",
    },
    Mutant {
        name: "redis_told_unknown_goes_on",
        from: "elseif record.s == 'H' and doubted_by == record.t then",
        to: "elseif false then",
        breaks: "a_late_outcome_ends_the_run_that_was_told_that_it_is_unknown",
    },
    Mutant {
        name: "redis_held_is_free",
        from: "if has_holder and record.l > at and record.l <= at + DAY then",
        to: "if false then",
        breaks: "one_of_64_claimants_wins",
    },
    Mutant {
        name: "redis_reentrant_by_nobody",
        from: "if has_holder and record.value == owner then",
        to: "if false then",
        breaks: "a_claim_that_is_said_again_is_granted_again",
    },
    Mutant {
        name: "redis_token_restarts",
        from: "record.t, record.k = math.max(record.t + 1, at), retention",
        to: "record.k = retention",
        breaks: "tokens_only_grow",
    },
    Mutant {
        name: "redis_window_ignored",
        from: "if rule == 'always' then return true end",
        to: "if rule == 'always' or rule == 'within' then return true end",
        breaks: "within_is_repeated_in_its_window_and_not_after_it",
    },
    Mutant {
        name: "redis_unknown_repeated",
        from: "            state = 'unknown'\n",
        to: "            state = 'repeat'\n",
        breaks: "never_and_ask_are_not_repeated",
    },
    Mutant {
        name: "redis_no_run_ceiling",
        from: "record.l = math.min(math.max(record.l, at + lease), record.m)",
        to: "record.l = math.max(record.l, at + lease)",
        breaks: "no_renewal_goes_beyond_the_run",
    },
    Mutant {
        name: "redis_conflict_is_duplicate",
        from: "then return { 'conflict' } end",
        to: "then return { 'done', response(record) } end",
        breaks: "another_payload_is_a_conflict_in_every_state",
    },
    Mutant {
        name: "redis_failure_counted_twice",
        from: "if record.s == 'P' then return { 'retry', record.a } end",
        to: "",
        breaks: "a_failure_that_is_said_again_counts_once",
    },
];

#[tokio::test]
async fn a_library_without_one_of_its_cares_breaks_the_case_that_is_about_it() {
    let redis = Redis::start().await.unwrap();
    let clock = RedisClock(connect(&redis.url()).await);
    let mut caught = BTreeSet::new();
    for mutant in MUTANTS {
        let library = RedisStore::library();
        assert!(library.contains(mutant.from), "{}: the library has changed", mutant.name);
        let mut connection = connect(&redis.url()).await;
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await.unwrap();
        redis::cmd("FUNCTION").arg("FLUSH").query_async::<()>(&mut connection).await.unwrap();
        let store = RedisStore::open(RedisSettings::new(&redis.url())).await.unwrap();
        // In its place, once the store has looked.
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(library.replace(mutant.from, mutant.to));
        load.query_async::<String>(&mut connection).await.unwrap();
        let broken = conformance::all(&store, &clock).await;
        let cases: Vec<&str> = broken.iter().map(|broken| broken.case).collect();
        assert!(cases.contains(&mutant.breaks), "{}: {cases:?}", mutant.name);
        caught.extend(cases);
    }
    assert!(caught.len() > 12, "{caught:?}");
}
