-- Records a batch. The statement is a transaction of its own: an invalid answer must end it here.
create or replace function oncely.record_fresh(
    messages oncely.message[], consumer text, at timestamptz, worker text, waited_us bigint, record_id uuid, tags bytea,
    expires_at timestamptz, response_limit bigint, seqs integer[], responses jsonb[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted integer := cardinality(messages);
    written integer;
    tenants text[];
begin
    for seq in 1 .. wanted loop
        if (seq = any (seqs)) is not true or cardinality(seqs) <> wanted then
            raise exception using errcode = 'ONC03', message = 'the batch handler did not return one row per message';
        end if;
    end loop;
    if responses is not null then
        perform oncely.response_texts(responses, response_limit);
        tenants := array(select distinct m.tenant from unnest(messages) as m);
        update oncely.idempotency_keys as i
        set response = r.response
        from (
            select (messages[a.seq]).tenant as tenant, (messages[a.seq]).key as key, a.response
            from unnest(seqs, responses) as a (seq, response)
            where a.response is not null
        ) as r
        where oncely.in_group(i.tenant, tenants) and i.tenant = r.tenant
          and i.consumer = record_fresh.consumer and i.key = r.key;
        get diagnostics written = row_count;
        if written <> cardinality(array_remove(responses, null)) then
            raise exception 'oncely: % responses were written of %', written, cardinality(responses);
        end if;
    end if;
    insert into oncely.audit (
        tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, trace_id
    )
    select m.tenant, at, 1,
        waited_us + (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint,
        record_fresh.consumer, m.key, m.queue, 'completed', record_fresh.worker, m.trace_id
    from unnest(messages) as m;
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % audit rows were written instead of %', written, wanted;
    end if;
    if tags is not null then
        insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
        values (
            (messages[1]).tenant, record_id, 'mirror', at, record_fresh.expires_at, record_fresh.consumer,
            record_fresh.tags
        );
    end if;
end
$$;
comment on function oncely.record_fresh is
    'Writes the responses, the trail and the mirror record of a batch that has taken effect for the first time. '
    'Refuses answers that don''t fit the messages (ONC03), and responses that are too large (ONC06, ONC25).';
