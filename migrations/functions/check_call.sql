create or replace function oncely.check_call(
    tenant text, consumer text, key text, fingerprint bytea, retention interval, on_conflict text
)
returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform oncely.check_isolation();
    perform oncely.check_argument('tenant', tenant), oncely.check_argument('consumer', consumer),
        oncely.check_argument('key', key);
    if octet_length(fingerprint) not between 1 and 64 then
        raise exception using errcode = 'ONC11',
            message = format('oncely: fingerprint has %s bytes', octet_length(fingerprint)),
            hint = 'It is sha256(body), or up to 64 bytes of another kind, or null where nothing is compared.';
    end if;
    if retention is null or retention <= interval '0' or extract(year from retention) not between -200 and 200
        or (
            retention > interval '366 days'
            and retention > coalesce(
                (select c.retention from oncely.consumers as c where c.consumer = check_call.consumer), interval '0'
            )
        )
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: retention is not a time to come, of 366 days or the consumer''s retention at most',
            hint = 'Such as interval ''7 days''. An operator lengthens the consumer''s: oncely retention set.';
    end if;
    if on_conflict is null or on_conflict not in ('dead_letter', 'duplicate') then
        raise exception using errcode = 'ONC11', message = 'oncely: on_conflict is neither dead_letter nor duplicate';
    end if;
end
$$;
comment on function oncely.check_call is 'Refuses what claim and fail can''t work with (SQLSTATE ONC10, ONC11).';
