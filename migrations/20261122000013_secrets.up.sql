set local search_path = pg_catalog, pg_temp;

-- Holds the keys of tags, signatures and marks: one for each purpose, so that access to one gives no access to another.
-- No role may read a secret here: two functions return them to the roles that need them.
create table oncely.secrets (
    purpose text collate "C" not null,
    id text collate "C" not null default left(gen_random_uuid()::text, 8),
    -- Two random uuids: 244 random bits.
    secret bytea not null
        default decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'),
    created_at timestamptz not null,
    signs_from timestamptz,
    accepted_until timestamptz,
    constraint secrets_pkey primary key (purpose, id),
    constraint secrets_purpose check (purpose in ('identity', 'letter', 'mirror')),
    constraint secrets_id check (id ~ '^[0-9a-f]{8}$'),
    constraint secrets_secret check (octet_length(secret) between 16 and 1024),
    constraint secrets_end check (signs_from is not null or accepted_until is not null),
    constraint secrets_times check (
        least(created_at, signs_from, accepted_until) >= '1970-01-01 00:00:00+00'
        and greatest(created_at, signs_from, accepted_until) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.secrets is
    'Keys by purpose. The latest whose signs_from is over is the one that signs; all are accepted until their end.';
comment on column oncely.secrets.purpose is
    'identity: of the identity that a retried copy carries. letter: of the mark on a dead letter''s copy. mirror: of '
    'the tags in Redis.';
comment on column oncely.secrets.id is 'Random, and no secret: stands in what was signed. It says nothing of the key.';
comment on column oncely.secrets.secret is
    'The key itself. Where oncely.toml sets [mirror] key or [cell] signing_key, that one is used.';
comment on column oncely.secrets.created_at is 'When it was made.';
comment on column oncely.secrets.signs_from is
    'From when on it signs, if no later one does. Processes know it before. Null: never, since another replaced it '
    'before.';
comment on column oncely.secrets.accepted_until is
    'Until when what it signed counts; null: as long as it is the one that signs. Of a mirror key: until when its '
    'entries may be there.';
insert into oncely.secrets (purpose, created_at, signs_from)
select p.purpose, n.at, n.at
from (values ('identity'), ('letter'), ('mirror')) as p (purpose)
cross join (select clock_timestamp() as at) as n;

-- from functions/mirror_keys.sql
create or replace function oncely.mirror_keys(out id text, out secret bytea) returns setof record
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.id, s.secret
    from oncely.secrets as s, (select clock_timestamp() as at) as n
    where s.purpose = 'mirror' and (s.accepted_until is null or s.accepted_until > n.at)
    order by s.signs_from is null, s.signs_from > n.at, s.signs_from desc, s.id
$$;
comment on function oncely.mirror_keys is 'Keys of the tags; the first is the one that makes them now.';
revoke execute on function oncely.mirror_keys from public;

-- from functions/signing_keys.sql
create or replace function oncely.signing_keys(out purpose text, out id text, out secret bytea) returns setof record
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    select s.purpose, s.id, s.secret
    from oncely.secrets as s, (select clock_timestamp() as at) as n
    where s.purpose in ('identity', 'letter') and (s.accepted_until is null or s.accepted_until > n.at)
    order by s.purpose, s.signs_from is null, s.signs_from > n.at, s.signs_from desc, s.id
$$;
comment on function oncely.signing_keys is
    'Keys of signed identities and of letter marks; of each purpose the first is the one that signs now.';
revoke execute on function oncely.signing_keys from public;

-- from functions/rotate_secret.sql
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

-- from functions/forget_secrets.sql
create or replace function oncely.forget_secrets() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz;
    gone bigint;
begin
    select least(u.clock_seen_at, clock_timestamp()) into at from oncely.maintenance as u;
    delete from oncely.secrets as s where s.accepted_until <= at;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.forget_secrets is
    'Deletes keys that are not accepted any more, by the clock as far as it is explained. Returns how many.';
revoke execute on function oncely.forget_secrets from public;

-- end of functions
