drop function oncely.handler_calls(text, boolean);
drop function oncely.record_fresh(oncely.message[], text, timestamptz, text, bigint, uuid, bytea, timestamptz, boolean, integer[], boolean);
drop function oncely.claim_fresh(oncely.message[], bytea[], text, timestamptz);

create function oncely.handle_all(handler text, batch boolean, messages oncely.message[])
returns table (seq integer, response jsonb)
language plpgsql
as $$
begin
    if batch then
        return query execute format('select r.seq, r.response from %s($1) as r (seq, response)', oncely.handler_name(handler, batch))
            using messages;
    else
        return query execute format('select m.seq, %s(m) from unnest($1) as m', oncely.handler_name(handler, batch))
            using messages;
    end if;
end
$$;
comment on function oncely.handle_all(text, boolean, oncely.message[]) is 'Runs the handler on all messages; the first error ends the statement.';

create function oncely.handle_fresh(
    handler text, batch boolean, messages oncely.message[], fingerprints bytea[], consumer text, worker text, at timestamptz,
    waited_us bigint, outbox_id uuid, tags bytea, expires_at timestamptz
)
returns table (seqs integer[], responses jsonb[])
language plpgsql
as $$
declare
    wanted integer := cardinality(messages);
    written integer;
begin
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select m.tenant, handle_fresh.consumer, m.key, 'COMPLETED', 1, at, at, m.fingerprint
    from unnest(messages, fingerprints) as m (
        seq, attempt, redelivered, published_at, tenant, consumer, key, payload, body, content_type, headers, exchange, routing_key,
        queue, message_id, correlation_id, reply_to, type, user_id, app_id, trace_id, fingerprint
    )
    order by m.tenant collate "C", m.key collate "C";
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % keys were claimed instead of %', written, wanted;
    end if;
    select array_agg(a.seq), case when count(a.response) > 0 then array_agg(a.response) end into seqs, responses
    from oncely.handle_all(handler, batch, messages) as a;
    insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, trace_id)
    select m.tenant, at, 1, waited_us + (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint,
        handle_fresh.consumer, m.key, m.queue, 'completed', handle_fresh.worker, m.trace_id
    from unnest(messages) as m;
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % audit rows were written instead of %', written, wanted;
    end if;
    if tags is not null then
        insert into oncely.outbox (tenant, id, kind, created_at, expires_at, tags)
        values ((messages[1]).tenant, outbox_id, 'mirror', at, handle_fresh.expires_at, handle_fresh.tags);
    end if;
    return next;
end
$$;
comment on function oncely.handle_fresh(text, boolean, oncely.message[], bytea[], text, text, timestamptz, bigint, uuid, bytea, timestamptz) is 'Claims the keys of a batch, all or none, runs the handler on it, and records that all have taken effect.';

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_worker') then
        grant execute on function oncely.handle_all(text, boolean, oncely.message[]), oncely.handle_fresh(text, boolean, oncely.message[], bytea[], text, text, timestamptz, bigint, uuid, bytea, timestamptz) to oncely_worker;
    end if;
end
$$;
