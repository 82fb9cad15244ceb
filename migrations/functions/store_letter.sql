-- Stores a client's letter. The quota and max_body are those of an unchanged configuration ([dead_letters]), which the
-- database does not know, or an operator's for the tenant (oncely tenant limit). As in keep_dead_letters.sql, a letter
-- that does not fit is kept without body and headers; if no handler ran this time, the cause stays.
create or replace function oncely.store_letter(
    tenant text, consumer text, key text, fingerprint bytea, reason text, error_code text, detail text,
    attempt integer, at timestamptz, queue text, worker text, trace_id text, body bytea, properties json,
    headers json, exchange text, routing_key text
) returns boolean
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    letter uuid := oncely.letter_id(store_letter.tenant, store_letter.consumer, store_letter.key, store_letter.body);
    why text := left(regexp_replace(store_letter.detail, '^(given up before: )+', ''), 1000);
    failed_alike text := oncely.failure_group(
        store_letter.reason, store_letter.error_code, coalesce(why, '')
    );
    kept_properties jsonb := '{}';
    kept_headers jsonb;
    left_out text;
    size bigint;
    size_before bigint;
    known record;
    is_stored boolean;
begin
    begin
        if json_typeof(store_letter.properties) = 'object' then
            -- user_id is the broker's statement, and signed as such when a letter is requeued.
            kept_properties := jsonb_strip_nulls(store_letter.properties::jsonb) - 'user_id';
        end if;
        if json_typeof(store_letter.headers) = 'object' then
            kept_headers := oncely.stored_headers(store_letter.headers::jsonb);
        end if;
        -- AMQP properties are ten short strings and three numbers.
        if octet_length(kept_properties::text) > 16384 then
            raise exception using errcode = 'program_limit_exceeded', message = 'oncely: properties are too long';
        end if;
    exception
        -- A value that jsonb can't hold (a NUL), or nests too deep: the publisher's fault, and no reason to fail.
        when program_limit_exceeded or untranslatable_character or statement_too_complex
            or numeric_value_out_of_range or invalid_text_representation
        then
            left_out := 'headers';
            kept_properties := '{}';
            kept_headers := null;
    end;
    left_out := case
        when not oncely.has_right('requeue', store_letter.queue, store_letter.tenant) then 'right'
        when left_out is null and octet_length(store_letter.body) > 262144 then 'max_body'
        else left_out
    end;
    size := octet_length(store_letter.body) + coalesce(octet_length(kept_headers::text), 0);
    select d.stored_size, d.whole, d.queue, d.state = 'waiting' and not d.from_client as is_workers into known
    from oncely.dead_letters as d
    where d.tenant = store_letter.tenant and d.id = letter
    for no key update;
    -- Only a worker changes a worker's letter, and a login without the right to requeue none.
    if found and (known.is_workers or left_out = 'right') then
        return known.whole and known.queue = store_letter.queue;
    end if;
    size_before := coalesce(known.stored_size, 0);
    if left_out is null and size > size_before then
        left_out := (
            select case
                when coalesce(l.letters, 100000) - coalesce(u.letters, 0) - g.letters < (size_before = 0)::integer
                    or coalesce(l.letter_bytes, 1073741824) - coalesce(u.bytes, 0) - g.bytes < size - size_before
                then 'quota'
            end
            from (
                select coalesce(sum(s.letters), 0) as letters, coalesce(sum(s.bytes), 0) as bytes
                from oncely.letter_growth as s
                where s.tenant = store_letter.tenant
            ) as g
            left join oncely.tenant_limits as l on l.tenant = store_letter.tenant
            left join oncely.letter_usage as u on u.tenant = store_letter.tenant
        );
        if left_out is null then
            insert into oncely.letter_growth (tenant, letters, bytes)
            values (store_letter.tenant, (size_before = 0)::integer, size - size_before);
        end if;
    end if;
    insert into oncely.dead_letters as d (
        tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id,
        state, generation, times, failure_group, exchange, routing_key, fingerprint, properties, headers, body,
        body_size, from_client, omitted, updated_at
    )
    values (
        store_letter.tenant, letter, store_letter.consumer, store_letter.key, store_letter.at, store_letter.reason,
        store_letter.error_code, why, store_letter.attempt, store_letter.queue, store_letter.worker,
        store_letter.trace_id, 'waiting', 1, 1, failed_alike, coalesce(store_letter.exchange, ''),
        coalesce(store_letter.routing_key, ''), store_letter.fingerprint, kept_properties,
        case when left_out is null then kept_headers end, case when left_out is null then store_letter.body end,
        octet_length(store_letter.body), true, left_out, store_letter.at
    )
    on conflict (tenant, id) do update
    set (error_code, detail, attempt, failure_group) = (
            select n.error_code, n.detail, n.attempt, n.failure_group
            from (
                values
                (true, excluded.error_code, excluded.detail, excluded.attempt, excluded.failure_group),
                (false, d.error_code, d.detail, d.attempt, d.failure_group)
            ) as n (has_run, error_code, detail, attempt, failure_group)
            where n.has_run = (excluded.attempt > 0 or excluded.reason <> d.reason)
        ),
        -- The same body. A worker's copy of it may be encrypted, and knows its publisher.
        (properties, headers, body, encrypted_by, omitted) = (
            select n.properties, n.headers, n.body, n.encrypted_by, n.omitted
            from (
                values
                (true, d.properties, d.headers, d.body, d.encrypted_by, d.omitted),
                (false, excluded.properties, excluded.headers, excluded.body, null, excluded.omitted)
            ) as n (is_kept, properties, headers, body, encrypted_by, omitted)
            where n.is_kept = (d.whole and d.queue = excluded.queue)
        ),
        dead_lettered_at = excluded.dead_lettered_at, reason = excluded.reason, queue = excluded.queue,
        worker = excluded.worker, trace_id = excluded.trace_id, state = 'waiting',
        generation = case when d.state = 'waiting' then d.generation else d.generation + 1 end, times = d.times + 1,
        exchange = excluded.exchange, routing_key = excluded.routing_key, fingerprint = excluded.fingerprint,
        from_client = true,
        updated_at = case when d.state = 'waiting' then d.updated_at else excluded.updated_at end, swept_at = null
    returning d.whole into is_stored;
    return is_stored;
end
$$;
comment on function oncely.store_letter is
    'Keeps a message that a client gives up as a dead letter; false where its body is not stored (the column omitted '
    'says why). For oncely.fail.';
revoke execute on function oncely.store_letter from public;
