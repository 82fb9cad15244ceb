-- A handler was called by EXECUTE, which parses and plans its statement anew with each batch, after resolving its name in a function
-- that was planned anew, too: 0.25 ms, half of what a batch of one message cost. Now the server writes the statement once, with the
-- handler's name in it, and the worker prepares it.

create function oncely.claim_fresh(messages oncely.message[], fingerprints bytea[], consumer text, at timestamptz)
returns oncely.message[]
language plpgsql
as $$
declare
    wanted integer := cardinality(messages);
    written integer;
begin
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select m.tenant, claim_fresh.consumer, m.key, 'COMPLETED', 1, at, at, m.fingerprint
    from unnest(messages, fingerprints) as m (
        seq, attempt, redelivered, published_at, tenant, consumer, key, payload, body, content_type, headers, exchange, routing_key,
        queue, message_id, correlation_id, reply_to, type, user_id, app_id, trace_id, fingerprint
    )
    order by m.tenant collate "C", m.key collate "C";
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % keys were claimed instead of %', written, wanted;
    end if;
    return messages;
end
$$;
comment on function oncely.claim_fresh(oncely.message[], bytea[], text, timestamptz) is 'Claims the keys of a batch, all or none, and returns the batch.';

create function oncely.record_fresh(
    messages oncely.message[], consumer text, at timestamptz, worker text, waited_us bigint, outbox_id uuid, tags bytea,
    expires_at timestamptz, alone boolean, seqs integer[], answered boolean
)
returns void
language plpgsql
as $$
declare
    wanted integer := cardinality(messages);
    written integer;
begin
    if alone then
        if answered then
            raise exception using errcode = 'ONC06', message = 'the handler returned a response';
        end if;
        for seq in 1 .. wanted loop
            if (seq = any (seqs)) is not true or cardinality(seqs) <> wanted then
                raise exception using errcode = 'ONC06', message = 'the batch handler did not return one row per message';
            end if;
        end loop;
    end if;
    insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, trace_id)
    select m.tenant, at, 1, waited_us + (extract(epoch from clock_timestamp() - statement_timestamp()) * 1000000)::bigint,
        record_fresh.consumer, m.key, m.queue, 'completed', record_fresh.worker, m.trace_id
    from unnest(messages) as m;
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % audit rows were written instead of %', written, wanted;
    end if;
    if tags is not null then
        insert into oncely.outbox (tenant, id, kind, created_at, expires_at, tags)
        values ((messages[1]).tenant, outbox_id, 'mirror', at, record_fresh.expires_at, record_fresh.tags);
    end if;
end
$$;
comment on function oncely.record_fresh(oncely.message[], text, timestamptz, text, bigint, uuid, bytea, timestamptz, boolean, integer[], boolean) is 'Writes the trail and the outbox of a batch that has taken effect for the first time. Alone, in a transaction that ends with the statement: refuses (ONC06) what the worker has to look at before it commits.';

-- The order is a matter of the data: the handler's argument is what the claim returns, and a list of results that holds aggregates is
-- made up when the last row has come.
create function oncely.handler_calls(handler text, batch boolean, out together text, out fresh text)
language plpgsql stable
as $$
declare
    answers text := 'select array_agg(r.seq), case when count(r.response) > 0 then array_agg(r.response) end';
    -- OFFSET 0: what a handler that is declared stable returns would otherwise be made up anew for each mention of it.
    call text := case
        when batch then ' from (select b.seq, b.response from %s(%s) as b (seq, response) offset 0) as r (seq, response)'
        else ' from (select m.seq, %s(m) from unnest(%s) as m offset 0) as r (seq, response)'
    end;
    name text := oncely.handler_name(handler, batch);
begin
    together := answers || format(call, name, '$1');
    fresh := answers || ', oncely.record_fresh($1, $3, $4, $5, $6, $7, $8, $9, $10, array_agg(r.seq), count(r.response) > 0)'
        || format(call, name, 'oncely.claim_fresh($1, $2, $3, $4)');
end
$$;
comment on function oncely.handler_calls(text, boolean) is 'The statements that run a handler on a batch ($1), for a worker to prepare: alone, and with the claim before it and the trail and the outbox after it.';

drop function oncely.handle_fresh(text, boolean, oncely.message[], bytea[], text, text, timestamptz, bigint, uuid, bytea, timestamptz);
drop function oncely.handle_all(text, boolean, oncely.message[]);

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_worker') then
        grant execute on function oncely.claim_fresh(oncely.message[], bytea[], text, timestamptz), oncely.record_fresh(oncely.message[], text, timestamptz, text, bigint, uuid, bytea, timestamptz, boolean, integer[], boolean), oncely.handler_calls(text, boolean) to oncely_worker;
    end if;
end
$$;
