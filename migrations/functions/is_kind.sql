create or replace function oncely.is_kind(kind text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Checks the user's privileges: that works if roles have other names, and for a user that sets its role.
    select coalesce(
        case
            -- A gateway claims keys as a worker does.
            when is_kind.kind in ('worker', 'gateway') then
                has_function_privilege(session_user, 'oncely.record_stats(uuid, timestamptz, jsonb)', 'execute')
                or pg_has_role(session_user, to_regrole('oncely_worker')::oid, 'member')
            when is_kind.kind = 'relay' then
                has_function_privilege(session_user, 'oncely.record_relay_stats(uuid, timestamptz, jsonb)', 'execute')
                or pg_has_role(session_user, to_regrole('oncely_relay')::oid, 'member')
        end,
        false
    )
$$;
comment on function oncely.is_kind is 'May the session''s user be a worker, a relay or a gateway? Internal.';
revoke execute on function oncely.is_kind from public;
