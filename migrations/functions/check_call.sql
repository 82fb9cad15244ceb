create or replace function oncely.check_call(
    tenant text, consumer text, key text, fingerprint bytea, retention interval, on_conflict text
)
returns interval
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    seconds constant numeric := extract(epoch from retention);
begin
    perform oncely.check_isolation();
    perform oncely.check_argument('tenant', tenant), oncely.check_argument('consumer', consumer),
        oncely.check_argument('key', key);
    if octet_length(fingerprint) not between 1 and 64 then
        raise exception using errcode = 'ONC11',
            message = format('oncely: fingerprint has %s bytes', octet_length(fingerprint)),
            hint = 'It is sha256(body), or up to 64 bytes of another kind, or null where nothing is compared.';
    end if;
    -- Compares seconds: see oncely.checked_time.
    if (
        seconds > 0 and (
            seconds <= extract(epoch from interval '366 days')
            or seconds <= (
                select extract(epoch from c.retention) from oncely.consumers as c
                where c.consumer = check_call.consumer
            )
        )
    ) is not true then
        raise exception using errcode = 'ONC11',
            message = 'oncely: retention is not a time to come, of 366 days or the consumer''s retention at most',
            hint = 'Such as interval ''7 days''. An operator lengthens the consumer''s: oncely retention set.';
    end if;
    if on_conflict is null or on_conflict not in ('dead_letter', 'duplicate') then
        raise exception using errcode = 'ONC11', message = 'oncely: on_conflict is neither dead_letter nor duplicate';
    end if;
    return make_interval(secs => seconds::double precision);
end
$$;
comment on function oncely.check_call is
    'Refuses what claim and fail can''t work with (SQLSTATE ONC10, ONC11). Returns the retention in seconds.';
