create or replace function oncely.rotate_secret(
    purpose text, signs_in interval, accepted_for interval, reason text, os_user text,
    out id text, out signs_from timestamptz, out accepted_until timestamptz
) returns record
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    at timestamptz;
begin
    if rotate_secret.purpose is null or rotate_secret.purpose not in ('identity', 'letter', 'mirror') then
        raise exception using errcode = 'ONC11', message = 'oncely: no key has this purpose',
            hint = 'There are identity, letter and mirror.';
    end if;
    -- Most processes have read the key by then; others ask.
    signs_in := oncely.checked_time(
        'the time until a new key signs', rotate_secret.signs_in, interval '5 seconds', interval '30 days'
    );
    if rotate_secret.accepted_for is not null then
        accepted_for := oncely.checked_time(
            'the time for which old keys count', rotate_secret.accepted_for, interval '0', interval '3650 days'
        );
    end if;
    -- Serializes rotations of a purpose.
    perform from oncely.secrets as s where s.purpose = rotate_secret.purpose for update;
    at := clock_timestamp();
    rotate_secret.signs_from := at + rotate_secret.signs_in;
    rotate_secret.accepted_until := rotate_secret.signs_from + coalesce(rotate_secret.accepted_for, (
        select case rotate_secret.purpose
            when 'mirror' then (select c.mirror_ttl from oncely.cell as c)
            else greatest(
                interval '30 days',
                max(greatest(k.retention, k.redelivery_horizon, k.former_retention)),
                (select max(greatest(l.retention, l.former_retention)) from oncely.tenant_limits as l)
            )
        end
        from oncely.consumers as k
    ));
    -- A key that has not begun never will. It may begin before this commits, and sign: so it is accepted.
    update oncely.secrets as s
    set signs_from = null, accepted_until = rotate_secret.accepted_until
    where s.purpose = rotate_secret.purpose and s.signs_from > at;
    -- The key that signs today does so until the new one begins, whatever was set for a key that has not begun.
    update oncely.secrets as s
    set accepted_until = rotate_secret.accepted_until
    where s.purpose = rotate_secret.purpose
        and (
            s.accepted_until is null or s.accepted_until > rotate_secret.accepted_until
            or s.signs_from = (
                select max(o.signs_from) from oncely.secrets as o where o.purpose = rotate_secret.purpose
            )
        );
    insert into oncely.secrets as s (purpose, created_at, signs_from)
    values (rotate_secret.purpose, at, rotate_secret.signs_from)
    returning s.id into rotate_secret.id;
    perform oncely.record_action(
        '', 'rotate key',
        jsonb_build_object(
            'purpose', rotate_secret.purpose, 'id', rotate_secret.id, 'signs_from', rotate_secret.signs_from,
            'accepted_until', rotate_secret.accepted_until
        ),
        1, rotate_secret.reason, rotate_secret.os_user
    );
end
$$;
comment on function oncely.rotate_secret is
    'Makes a new key of a purpose, which signs after a while; those of before are accepted for a time from then on '
    '(by default the longest retention of a consumer, 30 days at least; mirror: mirror.ttl). One that has not begun to '
    'sign never does. Recorded in operator_actions. Returns no secret.';
revoke execute on function oncely.rotate_secret from public;
