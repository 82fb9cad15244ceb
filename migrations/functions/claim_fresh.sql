-- Claims the keys of a batch. Leaves for later a key that another transaction holds, and rows that a batch and its
-- neighbours both want: a batch holds many locks, so waiting for one may deadlock. A message alone in its transaction
-- waits for the handler's locks as long as its session may.
create or replace function oncely.claim_fresh(
    messages oncely.message[], fingerprints bytea[], consumer text, at timestamptz, patient boolean
)
returns oncely.message[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    wanted integer := cardinality(messages);
    written integer;
    patience text := current_setting('lock_timeout');
begin
    perform set_config('lock_timeout', '100ms', true);
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select m.tenant, claim_fresh.consumer, m.key, 'COMPLETED', 1, at, at, m.fingerprint
    from unnest(messages, fingerprints) as m (
        seq, attempt, redelivered, published_at, tenant, consumer, key, payload, body, content_type, headers, exchange,
        routing_key, queue, message_id, correlation_id, reply_to, type, user_id, app_id, trace_id, fingerprint
    )
    order by m.tenant collate "C", m.key collate "C";
    get diagnostics written = row_count;
    if written <> wanted then
        raise exception 'oncely: % keys were claimed instead of %', written, wanted;
    end if;
    if wanted = 1 or patient then
        perform set_config('lock_timeout', patience, true);
    end if;
    return messages;
end
$$;
comment on function oncely.claim_fresh is
    'Claims the keys of a batch, all or none, and returns the batch. What follows in the transaction waits 100 ms for '
    'locks, or as long as the session may where the batch is one message, or patient.';
