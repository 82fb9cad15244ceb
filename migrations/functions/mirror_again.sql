-- Writes mirror records again for completed keys that only PostgreSQL knows, after Redis was emptied or replaced, or an
-- epoch changed. Writes them like oncely.complete: the relay makes the tags, so no caller needs the mirror's key. A
-- repetition changes nothing. created_at is now, behind keys just completed; completed_at keeps the key as long as its
-- record is pending; expires_at is the key's own end, so no entry outlives its key.
create or replace function oncely.mirror_again(
    consumer text, since timestamptz, most integer, inout place_time timestamptz, inout place_tenant text,
    inout place_key text, out records bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at constant timestamptz := clock_timestamp();
    remembered interval;
begin
    -- Takes turns with an erasure: keys that it deletes are not written again.
    perform from oncely.cell for share;
    select c.retention into remembered from oncely.consumers as c where c.consumer = mirror_again.consumer;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', mirror_again.consumer);
    end if;
    if mirror_again.since is null or mirror_again.place_time is null
        or coalesce(mirror_again.most, 0) not between 1 and 10000
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: mirror_again takes a time, a place to begin at, and from 1 to 10000 keys';
    end if;
    with again as (
        select i.tenant, i.key, i.fingerprint, i.completed_at,
            least(
                coalesce(
                    i.expires_at,
                    i.completed_at
                        + case when l.tenant is not null then greatest(l.retention, e.mirror_ttl) else remembered end
                ),
                '9999-12-31 00:00:00+00'
            ) as expires_at
        from oncely.idempotency_keys as i
        cross join oncely.cell as e
        left join oncely.tenant_limits as l on l.tenant = i.tenant and l.retention is not null
        where i.status = 'COMPLETED' and i.consumer = mirror_again.consumer
            and i.completed_at >= mirror_again.since and i.completed_at <= mirror_again.place_time
            and (
                mirror_again.place_key is null
                or (i.completed_at, i.tenant, i.key)
                    < (mirror_again.place_time, mirror_again.place_tenant, mirror_again.place_key)
            )
        order by i.completed_at desc, i.tenant desc, i.key desc
        limit mirror_again.most
    ),
    said as (
        insert into oncely.mirror_queue
            (tenant, id, kind, created_at, expires_at, completed_at, consumer, key, fingerprint)
        select a.tenant, oncely.uuid_v7(at), 'identity', at, a.expires_at, a.completed_at, mirror_again.consumer, a.key,
            a.fingerprint
        from again as a
        where a.expires_at > at
        returning 1
    ),
    last as (
        select a.completed_at, a.tenant, a.key from again as a order by a.completed_at, a.tenant, a.key limit 1
    )
    select (select l.completed_at from last as l), (select l.tenant from last as l), (select l.key from last as l),
        (select count(*) from said)
    into place_time, place_tenant, place_key, records;
end
$$;
comment on function oncely.mirror_again is
    'Writes mirror records for completed keys of a consumer once more, the newest first, from a place on (a time, or '
    'the key that the call before ended with) back to a time. Returns how many, and where it ended: nulls at the end. '
    'For operators.';
revoke execute on function oncely.mirror_again from public;
