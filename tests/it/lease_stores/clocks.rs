//! The clocks of servers: all that they hold is set back.

use std::time::Duration;

use oncely::lease::conformance::Clock;
use redis::aio::MultiplexedConnection;
use sqlx::PgPool;

/// Of the keys in a database. Sessions are as young as the test, and a lease that has run out as if they were not.
pub(super) struct PostgresClock(pub(super) PgPool);

impl Clock for PostgresClock {
    async fn advance(&self, time: Duration) {
        sqlx::query(
            "update oncely.idempotency_keys as i
             set not_before = i.not_before - t.time, grace_ends_at = i.not_before - t.time, run_ends_at = i.run_ends_at - t.time, expires_at = i.expires_at - t.time,
                created_at = i.created_at - t.time, completed_at = i.completed_at - t.time,
                steps = (
                    select jsonb_object_agg(s.name, case when s.step ? 'started_at'
                        then jsonb_set(s.step, '{started_at}', to_jsonb((s.step ->> 'started_at')::timestamptz - t.time)) else s.step end)
                    from jsonb_each(i.steps) as s (name, step)
                )
             from (select make_interval(secs => $1) as time) as t",
        )
        .bind(time.as_secs_f64())
        .execute(&self.0)
        .await
        .unwrap();
    }
}

/// Of all keys of a Redis: those of our store (ends of run and lease, and when each step began), and those of the articles' samples (`since`).
#[derive(Clone)]
pub(super) struct RedisClock(pub(super) MultiplexedConnection);

const SHIFT: &str = "
    local micros, seconds = tonumber(ARGV[1]), tonumber(ARGV[1]) / 1000000
    for _, key in ipairs(redis.call('KEYS', '*')) do
        if redis.call('TYPE', key).ok == 'string' then
            local value = redis.call('GET', key)
            if string.find(value, '^[HPF]') and #value >= 61 then
                local s, f, t, a, c, k, m, l, bytes, rest = struct.unpack('>c1c16dI4I4dddI4', value)
                m, l = math.max(m - micros, 0), math.max(l - micros, 0)
                local owner, steps = string.sub(value, rest, rest + bytes - 1), string.sub(value, rest + bytes)
                if steps ~= '' then
                    steps = cmsgpack.unpack(steps)
                    for _, step in pairs(steps) do step.began = step.began and step.began - micros end
                    steps = cmsgpack.pack(steps)
                end
                local shifted = struct.pack('>c1c16dI4I4dddI4', s, f, t, a, c, k, m, l, bytes) .. owner .. steps
                redis.call('SET', key, shifted, 'KEEPTTL')
            end
            local shifted, changed = string.gsub(value, '\"since\":(%d+)', function (at)
                return '\"since\":' .. string.format('%.0f', math.max(tonumber(at) - seconds * 1000, 0))
            end)
            if changed > 0 then
                redis.call('SET', key, shifted, 'KEEPTTL')
            end
        end
        local left = redis.call('PTTL', key)
        if left >= 0 then redis.call('PEXPIRE', key, math.ceil(left - seconds * 1000)) end
    end";

impl Clock for RedisClock {
    async fn advance(&self, time: Duration) {
        let mut connection = self.0.clone();
        let mut shift = redis::cmd("EVAL");
        shift.arg(SHIFT).arg(0).arg(u64::try_from(time.as_micros()).unwrap());
        shift.query_async::<()>(&mut connection).await.unwrap();
    }
}
