set local search_path = pg_catalog, pg_temp;

-- Runs handlers that are SQL functions. EXECUTE parses and plans its statement anew with each batch, 0.25 ms, half the
-- cost of a batch of one message: so the server writes the statement once, with the handler's name in it, and the
-- worker prepares it.

-- from functions/handler_name.sql
-- Returns a handler's quoted name, found by name and argument type; raises undefined_function (42883) without one.
create or replace function oncely.handler_name(handler text, batch boolean) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('%I.%I', n.nspname, p.proname)
        from pg_proc as p
        join pg_namespace as n on n.oid = p.pronamespace
        where p.oid = (handler || case when batch then '(oncely.message[])' else '(oncely.message)' end)::regprocedure
    );
end
$$;
comment on function oncely.handler_name is
    'Resolves a configured handler to a quoted name, so that no identifier is ever pasted.';

-- from functions/claim_fresh.sql
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

-- from functions/response_texts.sql
-- Returns responses as text for a worker, which holds all of a batch at once. The message whose response is too large
-- is identified by running messages one by one; a batch with too many of them runs in smaller ones.
create or replace function oncely.response_texts(responses jsonb[], response_limit bigint) returns text[]
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A worker has each several times: as it arrived, as it is stored.
    most constant bigint := 4194304;
    largest bigint;
    total bigint;
    texts text[];
begin
    select max(octet_length(t.text)), sum(octet_length(t.text)), array_agg(t.text order by t.n)
    into largest, total, texts
    from (select r.n, r.response::text as text from unnest(responses) with ordinality as r (response, n) offset 0) as t;
    if largest > response_limit then
        raise exception using errcode = 'ONC06', message = format(
            'the response has %s bytes as JSON; the limit is %s (consumers.response_limit, '
            'consumers.on_large_response)',
            largest, response_limit
        );
    elsif total > most then
        raise exception using errcode = 'ONC25', message = format(
            'the responses of a batch have %s bytes as JSON; the limit is %s', total, most
        );
    end if;
    return texts;
end
$$;
comment on function oncely.response_texts is
    'Returns a batch''s responses as text, in their order. Refuses one over the limit (ONC06), and more than 4 MiB '
    'together (ONC25).';

-- from functions/record_fresh.sql
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

-- from functions/handler_calls.sql
-- Returns statements ordered by their data: the handler's argument is the result of the claim, and a list of results
-- with aggregates is computed after the last row.
--
-- Parsed and planned under the handler's search_path (a handler that is a plain expression becomes part of the plan),
-- so they look up nothing along it. After the handler's last row, Oncely's path is set for the rest of the transaction.
-- "fresh" has no rest: COMMIT runs the handler's deferred work.
create or replace function oncely.handler_calls(handler text, batch boolean, out together text, out fresh text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    answers text := 'pg_catalog.array_agg(r.seq), '
        'case when pg_catalog.count(r.response) operator(pg_catalog.>) 0 then %s end';
    responses text := 'pg_catalog.array_agg(r.response)';
    pinned text := 'pg_catalog.set_config(''search_path'', ''pg_catalog, pg_temp'', true)';
    -- OFFSET 0: otherwise the result of a handler declared stable would be computed anew for each reference to it.
    call text := case
        when batch
            then ' from (select b.seq, b.response from %s(%s) as b (seq, response) offset 0) as r (seq, response)'
        else ' from (select m.seq, %s(m) from pg_catalog.unnest(%s) as m offset 0) as r (seq, response)'
    end;
    name text := oncely.handler_name(handler, batch);
begin
    together := 'select ' || format(answers, 'oncely.response_texts(' || responses || ', $2)') || ', ' || pinned
        || format(call, name, '$1');
    fresh := 'select oncely.record_fresh($1, $3, $4, $5, $6, $7, $8, $9, $10, '
        || format(answers, responses) || ')' || format(call, name, 'oncely.claim_fresh($1, $2, $3, $4, $11)');
end
$$;
comment on function oncely.handler_calls is
    'The statements that run a handler on a batch ($1), for a worker to prepare: by itself, and as a transaction of '
    'its own with the claim before it and the responses, the trail and the mirror record after it.';

-- from functions/take_turn.sql
-- Locks the consumer's row: while its batches collide, they run one at a time, over all processes. Only their speed
-- depends on it.
create or replace function oncely.take_turn(consumer text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
begin
    perform from oncely.turns as t where t.consumer = take_turn.consumer for no key update;
    return found;
exception
    when lock_not_available then
        return false;
end
$$;
comment on function oncely.take_turn is
    'Makes the transaction the only batch of its consumer that takes turns, until its end; false where another one has '
    'been that for two seconds.';
revoke execute on function oncely.take_turn from public;

-- from functions/handle_each.sql
-- Runs each message in a subtransaction of its own: a failing message undoes its own effect and leaves its neighbours
-- theirs. Does not catch a cancelled statement (statement_timeout): "others" excludes query_canceled. error_place holds
-- names of the schema, without data of the message; error_message may have some.
create or replace function oncely.handle_each(
    handler text, batch boolean, needs_json boolean, messages oncely.message[]
) returns table (seq integer, response jsonb, error_code text, error_message text, error_place text)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    message oncely.message;
    answers integer;
    call text := case
        when batch then format(
            'select r.seq, r.response, pg_catalog.count(*) over () from %s(array[$1]) as r (seq, response)',
            oncely.handler_name(handler, batch)
        )
        else format('select $1.seq, %s($1), 1', oncely.handler_name(handler, batch))
    end;
    answered integer;
    detail text;
    constraint_name text;
    table_name text;
    column_name text;
begin
    foreach message in array messages loop
        seq := message.seq;
        response := null;
        error_code := null;
        error_message := null;
        error_place := null;
        begin
            if needs_json and message.payload is null then
                raise exception using errcode = 'ONC02', message = 'the body is not JSON that PostgreSQL can hold';
            end if;
            answers := 0;
            -- Uses the handler's own search_path; an error restores the previous one.
            set local search_path to default;
            execute call into answered, response, answers using message;
            set local search_path = pg_catalog, pg_temp;
            if answers is distinct from 1 or answered is distinct from message.seq then
                raise exception using errcode = 'ONC03',
                    message = format('the batch handler returned %s rows for one message', coalesce(answers, 0));
            end if;
        exception
            -- After a deadlock or a lock timeout, other transactions wait for locks of this one, so it ends at once.
            when transaction_rollback or lock_not_available then
                raise;
            when others then
                response := null;
                error_code := sqlstate;
                error_message := sqlerrm;
                get stacked diagnostics constraint_name = constraint_name, table_name = table_name,
                    column_name = column_name;
                error_place := concat_ws(
                    ', ', 'constraint ' || nullif(constraint_name, ''), 'table ' || nullif(table_name, ''),
                    'column ' || nullif(column_name, '')
                );
                -- The handler's intended text. Details of other errors hold data, such as the values of a violated key.
                if sqlstate = 'ONC01' then
                    get stacked diagnostics detail = pg_exception_detail;
                    error_message := concat_ws(': ', nullif(sqlerrm, ''), nullif(detail, ''));
                end if;
        end;
        return next;
    end loop;
end
$$;
comment on function oncely.handle_each is
    'Runs the handler on each message in a subtransaction of its own and returns errors as rows.';

-- from functions/handle_parts.sql
-- Runs a batch in parts: one bad message in a hundred must not cause one subtransaction per message. A batch of 256
-- with two bad ones runs in sixteen parts; a failing part in four quarters, a failing quarter message by message. A
-- failed subtransaction leaves PostgreSQL's list of running ones (64 a backend; beyond that every reader gets slower),
-- a good one stays in it, so eight bad messages cost at most 16 + 8 * (3 + 3) of them.
create or replace function oncely.handle_parts(
    handler text, batch boolean, needs_json boolean, messages oncely.message[], parts integer default 16
)
returns table (seq integer, response jsonb, error_code text, error_message text, error_place text)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    size integer := greatest(1, ceil(cardinality(messages)::numeric / parts)::integer);
    call text := case
        when batch then format(
            'select pg_catalog.array_agg((r.seq, r.response)::oncely.result) from %s($1) as r (seq, response)',
            oncely.handler_name(handler, batch)
        )
        else format(
            'select pg_catalog.array_agg((m.seq, %s(m))::oncely.result) from pg_catalog.unnest($1) as m',
            oncely.handler_name(handler, batch)
        )
    end;
    part oncely.message[];
    answers oncely.result[];
    failed boolean;
begin
    for head in 1 .. cardinality(messages) by size loop
        part := messages[head : head + size - 1];
        -- A handler that needs JSON gets only JSON: other messages fail by themselves, in handle_each.
        failed := needs_json and exists (select from unnest(part) as m where m.payload is null);
        if not failed then
            begin
                -- Uses the handler's own search_path; an error restores the previous one.
                set local search_path to default;
                -- Kept in a variable: rows returned by RETURN QUERY stay returned after a rollback of the
                -- subtransaction.
                execute call into answers using part;
                set local search_path = pg_catalog, pg_temp;
            exception
                when transaction_rollback or lock_not_available then
                    raise;
                when others then
                    failed := true;
            end;
        end if;
        if not failed then
            return query select a.seq, a.response, null::text, null::text, null::text from unnest(answers) as a;
        elsif parts > 4 and cardinality(part) > 1 then
            return query select p.* from oncely.handle_parts(handler, batch, needs_json, part, 4) as p;
        else
            return query select e.* from oncely.handle_each(handler, batch, needs_json, part) as e;
        end if;
    end loop;
end
$$;
comment on function oncely.handle_parts is
    'Runs the handler on parts of a batch, each in a subtransaction; in a part that fails on smaller ones, down to '
    'single messages, whose errors it returns as rows.';

-- from functions/claim_request.sql
-- Claims a request's key unless it has a row; otherwise returns the key's state and stored answer. Looks first: a
-- known key is not waited for, whatever a transaction does with its row. Returns neither if another transaction was
-- faster and its row is gone again: then the caller repeats the call. Inserts a claim as FAILED with the reason
-- outcome_unknown; the answer changes it to COMPLETED (pg::store_http_answer) in the same transaction. So FAILED
-- becomes visible only if the handler, which is foreign code, commits in between; then it is the key's true state.
-- Its lock waits are short, also for a lock of the whole table; those after it are the session's.
create or replace function oncely.claim_request(
    tenant text, consumer text, key text, at timestamptz, fingerprint bytea,
    out is_claimed boolean, out status text, out known_fingerprint bytea, out attempts integer,
    out crash_attempts integer, out reason text, out last_error text, out error_code text, out not_before timestamptz,
    out is_leased boolean, out is_running boolean, out http_status smallint, out http_headers jsonb,
    out http_body bytea, out response text
)
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
begin
    is_claimed := false;
    for attempt in 1..2 loop
        select k.status::text, k.fingerprint, k.attempts, k.crash_attempts, k.reason, k.last_error, k.error_code,
            k.not_before, k.fencing_token is not null,
            -- Whether another session serves the counted run; checked only for keys that are marked.
            case when k.marked_pid <> pg_backend_pid()
            then oncely.is_at_work(k.marked_pid, k.marked_backend_start) end,
            k.http_status, k.http_headers, k.http_body, k.response::text
        into status, known_fingerprint, attempts, crash_attempts, reason, last_error, error_code, not_before,
            is_leased, is_running, http_status, http_headers, http_body, response
        from oncely.idempotency_keys as k
        where k.tenant = claim_request.tenant and k.consumer = claim_request.consumer and k.key = claim_request.key;
        if found or attempt = 2 then
            exit;
        end if;
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error
        )
        values (
            claim_request.tenant, claim_request.consumer, claim_request.key, 'FAILED', 1, claim_request.at,
            claim_request.at, claim_request.fingerprint, 'outcome_unknown',
            'a handler has ended the transaction of its request itself'
        )
        on conflict on constraint idempotency_keys_pkey do nothing;
        if found then
            is_claimed := true;
            -- Limits how long a process that hangs in the transaction holds its key: twice the longest limit of a
            -- handler.
            perform set_config('idle_in_transaction_session_timeout', '2min', true),
                -- Used by pg::leave_request to detect that a handler has ended the transaction.
                set_config('oncely.handler_role', current_setting('role'), true);
            return;
        end if;
    end loop;
    -- A failover would lose a row that a standby lacks, and rerun it: COMMIT waits for the standby
    -- (pg::wait_for_standby).
    if status = 'COMPLETED' and current_setting('synchronous_standby_names') <> '' then
        perform pg_logical_emit_message(true, 'oncely', '');
    end if;
end
$$;
comment on function oncely.claim_request is 'Claims the key of a request. For the HTTP door.';
revoke execute on function oncely.claim_request from public;

-- from functions/retake_request.sql
-- Claims a request's key after failed runs as a message, unless it has to wait until after due; returns true if it may
-- run in this transaction. Rechecks the row after a lock wait (EvalPlanQual): a transaction that completed or put off
-- the key meanwhile keeps it. Skips a key that runs under leases: external calls of such a run may have happened. Does
-- not compare the status: that would match a partial index, which is long, and the primary key finds one row. Status,
-- settings and lock waits as in oncely.claim_request.
create or replace function oncely.retake_request(
    tenant text, consumer text, key text, at timestamptz, fingerprint bytea, due timestamptz
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
begin
    update oncely.idempotency_keys as i
    set status = 'FAILED', attempts = i.attempts + 1, completed_at = retake_request.at,
        fingerprint = retake_request.fingerprint, reason = 'outcome_unknown',
        last_error = 'a handler has ended the transaction of its request itself',
        -- A client of oncely.claim may have failed at it: from now on the consumer's retention applies.
        expires_at = null, not_before = null, marked_pid = null, marked_backend_start = null
    where i.tenant = retake_request.tenant and i.consumer = retake_request.consumer and i.key = retake_request.key
        and i.completed_at is null and i.fencing_token is null
        and (i.not_before is null or i.not_before <= retake_request.due);
    if not found then
        return false;
    end if;
    perform set_config('idle_in_transaction_session_timeout', '2min', true),
        set_config('oncely.handler_role', current_setting('role'), true);
    return true;
end
$$;
comment on function oncely.retake_request is
    'Claims the key of a request that has failed as a message. For the HTTP door.';
revoke execute on function oncely.retake_request from public;

-- end of functions
