set local search_path = pg_catalog, pg_temp;

-- Provides the worker's claim in SQL, for clients in any language that consume in their own transaction.
--
-- A claim is written as FAILED with the reason incomplete_claim, and complete() turns it into COMPLETED. Both are in
-- one transaction, so no other session ever sees the first, unless it was used wrongly: committed without complete(),
-- or claimed outside of a transaction (autocommit). Then it is unknown whether the effect happened, and of the three
-- possible states, COMPLETED may lose it, IN_PROGRESS may double it, and FAILED does neither: no worker and no client
-- runs the key again, and its reason says why. This costs one row version more than the worker's claim, which is
-- inserted as COMPLETED; but here foreign code runs between the two. complete() requires the claim of its very
-- transaction (claimed_in is its number), so that autocommit is found out with the first message.
--
-- Reserved for tenants that are spread over cells, and not returned yet: the outcome "elsewhere" of claim and fail, and
-- SQLSTATE ONC17 of every function that takes a tenant. This cell does not hold the tenant: nothing was done, and
-- nothing is counted. A client only requeues the message (ROLLBACK; no fail, no dead letter, no acknowledgement): its
-- next delivery may meet the right cell. A client that knows this needs no change on that day.

-- from functions/protocol_version.sql
create or replace function oncely.protocol_version() returns integer
language sql immutable parallel safe
begin atomic
    select 1;
end;
comment on function oncely.protocol_version is
    'Version of oncely.claim, complete and fail. Within a version parameters with defaults and columns are only '
    'added. Reserved: the outcome elsewhere and SQLSTATE ONC17, not in this cell: do nothing, requeue.';

-- from functions/check_isolation.sql
-- Requires READ COMMITTED: on an older snapshot, a session that had to wait would miss the previous session's work.
create or replace function oncely.check_isolation() returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = 'ONC10',
            message = format('oncely: the transaction is %s', upper(current_setting('transaction_isolation'))),
            hint = 'Begin it with SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    end if;
end
$$;
comment on function oncely.check_isolation is 'Refuses a transaction that is not READ COMMITTED (SQLSTATE ONC10).';

-- from functions/check_call.sql
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

-- from functions/check_short.sql
create or replace function oncely.check_short(queue text, worker text, trace_id text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if greatest(octet_length(queue), octet_length(worker), octet_length(trace_id)) > 255 then
        raise exception using errcode = 'ONC11', message = 'oncely: queue, worker and trace_id have 255 bytes at most';
    end if;
end
$$;
comment on function oncely.check_short is 'Refuses a name for the trail that is too long (SQLSTATE ONC11).';

-- from functions/check_failure.sql
create or replace function oncely.check_failure(reason text, reasons text[], error_code text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if error_code !~ '^[0-9A-Z]{5}$' and error_code <> '' then
        raise exception using errcode = 'ONC11', message = 'oncely: error_code is no SQLSTATE',
            hint = 'Five digits and capitals, or null.';
    end if;
    if reason <> all (reasons) then
        raise exception using errcode = 'ONC11',
            message = format('oncely: reason is none of %s', array_to_string(reasons, ', ')),
            hint = 'Null where error_code decides, or the message may run again until max_attempts.';
    end if;
end
$$;
comment on function oncely.check_failure is 'Refuses a failure of no known kind (SQLSTATE ONC11).';

-- from functions/await_standby.sql
-- Makes COMMIT wait for the standby. A commit with an interrupted wait for the standby is visible, and would still be
-- lost by a failover. A transaction that relies on it must wait by its own commit, which waits only if the transaction
-- has written something.
create or replace function oncely.await_standby() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_standby_names') <> '' then
        perform pg_logical_emit_message(true, 'oncely', '');
    end if;
end
$$;
comment on function oncely.await_standby is
    'Makes the COMMIT of this transaction wait for the synchronous standby, where there is one.';

-- from functions/note_claim.sql
-- Notes the claim in a setting, which a rollback to a savepoint undoes together with the claim.
create or replace function oncely.note_claim(tenant text) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config(
        'oncely.claimed',
        case
            when coalesce(current_setting('oncely.claimed', true), '') in ('', '=' || tenant) then '=' || tenant
            else '*'
        end,
        true
    );
end
$$;
comment on function oncely.note_claim is 'Notes for oncely.emit whose message this transaction has claimed.';
revoke execute on function oncely.note_claim from public;

-- from functions/claimed_retention.sql
-- Returns a claim's retention. A claimant knows how old a copy may be, so a tenant's own retention lengthens the
-- claim's, and never shortens it. Security definer: callers read the limit through this function only.
create or replace function oncely.claimed_retention(tenant text, retention interval) returns interval
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if retention is null then
        return null;
    end if;
    return greatest(
        retention, (select l.retention from oncely.tenant_limits as l where l.tenant = claimed_retention.tenant)
    );
end
$$;
comment on function oncely.claimed_retention is
    'How long a key is remembered that says so itself: as its claim says, or as its tenant does where that is longer.';
revoke execute on function oncely.claimed_retention from public;

-- from functions/claim.sql
create or replace function oncely.claim(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    out outcome text,
    out attempt integer,
    out response jsonb,
    out reason text,
    out detail text,
    out delay interval
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    ends timestamptz;
    -- A copy may come slightly early.
    due timestamptz;
    decision text;
    incomplete text := 'the transaction that claimed this key was committed without oncely.complete: whether it took '
        'effect is not known';
    known record;
    print bytea := oncely.stored_fingerprint(fingerprint);
begin
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    perform oncely.check_right('consume', consumer, tenant);
    ends := clock_timestamp() + oncely.claimed_retention(tenant, retention);
    attempt := 0;
    for round in 1..8 loop
        -- Waits for the session that holds the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, claimed_in, reason,
            last_error, expires_at
        )
        values (tenant, consumer, key, 'FAILED', 1, at, at, print, own, 'incomplete_claim', incomplete, ends)
        on conflict on constraint idempotency_keys_pkey do nothing;
        if found then
            outcome := 'granted';
            attempt := 1;
            perform oncely.note_claim(tenant);
            return;
        end if;
        -- A separate statement, with a snapshot of its own, sees the winner's row.
        select i.status, i.fingerprint, i.reason, i.last_error, i.response, i.claimed_in, i.not_before,
            i.fencing_token is not null as is_leased
        into known
        from oncely.idempotency_keys as i
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        -- Neither claimed nor found: the key was collected in between.
        continue when not found;
        if known.claimed_in = own and known.reason = 'incomplete_claim' then
            raise exception using errcode = 'ONC13', message = 'oncely: this transaction has claimed the key already',
                hint = 'Complete a key before the next message with the same key is claimed.';
        end if;
        -- A caller without a fingerprint does not prove that it knows the payload: a key stored with a fingerprint is
        -- not granted to it, nor is its response returned.
        decision := case
            when known.fingerprint is not null and print is null and on_conflict = 'dead_letter'
                then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, known.is_leased, on_conflict)
        end;
        case decision
            when 'conflict' then
                outcome := 'conflict';
                reason := 'key_conflict';
                detail := 'this key came before with another payload';
                return;
            when 'duplicate' then
                perform oncely.await_standby();
                outcome := 'duplicate';
                -- For a claimant with a fingerprint: of this payload, or of another if on_conflict = duplicate.
                if known.fingerprint is null or print is not null then
                    response := known.response;
                end if;
                return;
            when 'given_up' then
                outcome := 'given_up';
                reason := known.reason;
                detail := concat_ws(': ', 'given up before', known.last_error);
                return;
            when 'leased' then
                -- External calls of a run under a lease may have happened, and this claim does not know of them.
                if known.not_before > clock_timestamp() then
                    outcome := 'retry';
                    delay := known.not_before - clock_timestamp();
                else
                    outcome := 'given_up';
                    reason := 'outcome_unknown';
                    detail := 'runs under leases (oncely.claim_lease) began this message: it runs under one only';
                end if;
                return;
            when 'retake' then
                -- The delay belongs to the key: an early copy spends no attempt.
                due := clock_timestamp() + interval '100 milliseconds';
                if known.not_before > due then
                    outcome := 'retry';
                    delay := known.not_before - clock_timestamp();
                    return;
                end if;
                -- If no row is updated, another session has completed the key meanwhile: the loop reads it again.
                update oncely.idempotency_keys as i
                set status = 'FAILED', attempts = i.attempts + 1, completed_at = at,
                    fingerprint = coalesce(print, i.fingerprint), not_before = null,
                    claimed_in = own, reason = 'incomplete_claim', last_error = incomplete, expires_at = ends,
                    marked_pid = null, marked_backend_start = null
                where i.tenant = tenant and i.consumer = consumer and i.key = key
                    -- Matches IN_PROGRESS, worded to suit no partial index: those are long, and the primary key finds
                    -- one row.
                    and i.completed_at is null
                    and i.fencing_token is null
                    -- The session that held the row meanwhile may have failed: the delay is checked again.
                    and (i.not_before is null or i.not_before <= due)
                returning i.attempts into attempt;
                if found then
                    outcome := 'granted';
                    perform oncely.note_claim(tenant);
                    return;
                end if;
                attempt := 0;
        end case;
    end loop;
    raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be claimed',
        hint = 'Try again.';
end
$$;
comment on function oncely.claim is
    'Claims a message for this transaction: granted (do the work, then oncely.complete, then COMMIT), duplicate '
    '(with the response), retry (its delay is not over: COMMIT, wait, requeue), conflict or given_up (dead-letter '
    'it); reserved: elsewhere (not in this cell: ROLLBACK, requeue). 55P03: another transaction has the key: ROLLBACK, '
    'requeue. ONC16: no right. Protocol version 1.';
revoke execute on function oncely.claim from public;

-- from functions/complete.sql
create or replace function oncely.complete(
    tenant text,
    consumer text,
    key text,
    response jsonb default null,
    queue text default '',
    worker text default null,
    trace_id text default null,
    mirror boolean default true
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    now timestamptz := clock_timestamp();
    done record;
begin
    -- The claim has checked this, too. But in a restored database, a claim of the original may have this transaction's
    -- number.
    perform oncely.check_right('consume', consumer, tenant);
    perform oncely.check_short(queue, worker, trace_id);
    if octet_length(response::text) > 65536 then
        raise exception using errcode = 'ONC15',
            message = format('oncely: the response has %s bytes; 65536 are allowed', octet_length(response::text)),
            hint = 'Keep what is large in a table of your own, and respond with its id.';
    end if;
    update oncely.idempotency_keys as i
    set status = 'COMPLETED', response = response, reason = null, last_error = null
    where i.tenant = tenant and i.consumer = consumer and i.key = key
      -- Does not compare the status: that would suit a partial index, which is long; the primary key finds one row.
      and i.reason = 'incomplete_claim' and i.claimed_in = pg_current_xact_id()::text::bigint
    returning i.attempts, i.completed_at, i.expires_at, i.fingerprint into done;
    if not found then
        raise exception using errcode = 'ONC12', message = 'oncely: this transaction holds no claim of the key',
            hint = 'oncely.claim must have granted it, in this very transaction (BEGIN, not autocommit), and not have '
                'been rolled back to a savepoint.';
    end if;
    -- Inlines the insert of oncely.record_decision: it runs for each message of a client.
    insert into oncely.audit (
        tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, login, trace_id
    )
    values (
        tenant, now, done.attempts, extract(epoch from now - done.completed_at) * 1000000, consumer, key,
        coalesce(queue, ''), 'completed', oncely.worker_name(worker), session_login, trace_id
    );
    if mirror then
        -- Created with the key's completion time, not later: the collection keeps keys not older than the oldest
        -- record.
        insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, key, fingerprint)
        values (
            tenant, oncely.uuid_v7(now), 'identity', done.completed_at, done.expires_at, consumer, key, done.fingerprint
        );
    end if;
end
$$;
comment on function oncely.complete is
    'Completes a claim of this transaction: stores the response, writes the audit row and the record for the '
    'mirror. Protocol version 1.';
revoke execute on function oncely.complete from public;

-- end of functions

-- Stores a message that a client gives up like a worker does, and keeps it like that one: in its group, until an
-- operator has it requeued or discarded. Stores it in the transaction of the verdict, so that both exist or neither
-- does: a client that dies before it acknowledges gets the message again, is told that it was given up, and stores the
-- same row. From then on only the row has the message, and the client acknowledges: a copy in its own dead-letter queue
-- could not be told from another message.

-- from functions/letter_id.sql
create or replace function oncely.letter_id(tenant text, consumer text, key text, body bytea) returns uuid
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea;
begin
    digest := substr(
        sha256(
            int8send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
            || int8send(octet_length(consumer)) || convert_to(consumer, 'UTF8')
            || int8send(octet_length(key)) || convert_to(key, 'UTF8')
            || body
        ), 1, 16
    );
    return encode(
        set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128), 'hex'
    )::uuid;
end
$$;
comment on function oncely.letter_id is
    'The id of a dead letter: the same one however often the message is dead-lettered, by workers too.';
revoke execute on function oncely.letter_id from public;

-- from functions/failure_group.sql
-- Groups failures like crates/core/src/letter.rs, except for rare characters.
create or replace function oncely.failure_group(reason text, error_code text, detail text) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select concat(
        reason, '/', coalesce(nullif(error_code, ''), '-'), '/',
        left(
            encode(
                sha256(convert_to(
                    regexp_replace(
                        regexp_replace(
                            detail, E'"[^"]*"|`[^`]*`|“[^”]*”|«[^»]*»|(?<!\\w)''[^'']*''', '"…"', 'g'
                        ),
                        E'[-+]?(?=[-\\w.:,+]*\\d)\\w+(?:[-.:,+]+\\w+)*', '#', 'g'
                    ), 'UTF8'
                )), 'hex'
            ), 8
        )
    )
$$;
comment on function oncely.failure_group is
    'A stable name for what failed alike: reason, SQLSTATE and a hash of the detail without its numbers and quoted '
    'values.';
revoke execute on function oncely.failure_group from public;

-- from functions/stored_header.sql
create or replace function oncely.stored_header(value jsonb, depth integer default 0) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The same depth as in workers (crates/amqp/src/stored.rs).
    if depth > 40 then
        raise exception using errcode = 'program_limit_exceeded', message = 'oncely: headers nest too deep';
    end if;
    return case jsonb_typeof(value)
        when 'object' then jsonb_build_object('F', oncely.stored_headers(value, depth + 1))
        when 'array' then (
            select coalesce(jsonb_agg(oncely.stored_header(e.value, depth + 1) order by e.place), '[]')
            from jsonb_array_elements(value) with ordinality as e (value, place)
        )
        when 'number' then case
            when scale((value #>> '{}')::numeric) = 0
                and (value #>> '{}')::numeric between -9223372036854775808 and 9223372036854775807 then value
            else jsonb_build_object('d', value #>> '{}')
        end
        else value
    end;
end
$$;
comment on function oncely.stored_header is
    'A header''s value in the form of dead_letters.headers, from plain JSON: an object is a table, a number that is no '
    'integer of 64 bits a double.';
revoke execute on function oncely.stored_header from public;

-- from functions/stored_headers.sql
create or replace function oncely.stored_headers(headers jsonb, depth integer default 0) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    every jsonb;
begin
    select coalesce(jsonb_object_agg(h.name, oncely.stored_header(h.value, depth + 1)), '{}')
    into every
    from jsonb_each(headers) as h (name, value);
    if exists (select from jsonb_object_keys(headers) as k (name) where octet_length(k.name) > 255) then
        raise exception using errcode = 'program_limit_exceeded', message = 'oncely: a header''s name is too long';
    end if;
    return every;
end
$$;
comment on function oncely.stored_headers is 'Headers in the form of dead_letters.headers, from plain JSON.';
revoke execute on function oncely.stored_headers from public;

-- from functions/check_message.sql
create or replace function oncely.check_message(
    queue text, exchange text, routing_key text, properties json, headers json
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    other text;
begin
    if coalesce(queue, '') = '' then
        raise exception using errcode = 'ONC11', message = 'oncely: a message has a body and no queue',
            hint = 'queue => the queue that it came from: a requeue publishes it there.';
    end if;
    if greatest(octet_length(exchange), octet_length(routing_key)) > 255 then
        raise exception using errcode = 'ONC11', message = 'oncely: exchange and routing_key have 255 bytes at most';
    end if;
    if json_typeof(properties) not in ('object', 'null') or json_typeof(headers) not in ('object', 'null') then
        raise exception using errcode = 'ONC11', message = 'oncely: properties and headers are JSON objects, or null';
    end if;
    if json_typeof(properties) = 'object' then
        select p.name into other
        from json_each(properties) as p (name, value)
        where json_typeof(p.value) <> 'null' and json_typeof(p.value) is distinct from case
            when p.name in ('delivery_mode', 'priority', 'timestamp') then 'number'
            when p.name in (
                'content_type', 'content_encoding', 'correlation_id', 'reply_to', 'expiration', 'message_id', 'type',
                'user_id', 'app_id', 'cluster_id'
            ) then 'string'
        end
        limit 1;
        if found then
            raise exception using errcode = 'ONC11',
                message = format('oncely: %L is no property of AMQP, or has another type', other),
                hint = 'Properties have AMQP''s names (content_type, message_id, …); headers go into headers.';
        end if;
    end if;
end
$$;
comment on function oncely.check_message is
    'Refuses a message that can''t be published as it is given (SQLSTATE ONC11).';
revoke execute on function oncely.check_message from public;

-- from functions/store_letter.sql
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

-- from functions/fail.sql
create or replace function oncely.fail(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    attempt integer,
    error text,
    reason text default null,
    error_code text default null,
    max_attempts integer default 6,
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    queue text default '',
    worker text default null,
    trace_id text default null,
    delay interval default null,
    body bytea default null,
    properties json default null,
    headers json default null,
    exchange text default '',
    routing_key text default '',
    out outcome text,
    out attempts integer,
    out final_reason text,
    out stored boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    known record;
    print bytea := oncely.stored_fingerprint(fingerprint);
    -- Cut to the length that people read.
    detail text := left(error, 8000);
    ends timestamptz;
    again timestamptz;
    class text := oncely.error_class(coalesce(error_code, ''));
    why text := coalesce(reason, nullif(nullif(class, 'transient'), 'environment'));
    given_up boolean := why is not null or attempt >= max_attempts;
    is_charged boolean := false;
begin
    stored := false;
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    if attempt is null or attempt not between 0 and 10000
        or max_attempts is null or max_attempts not between 1 and 10000
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: attempt is the number that oncely.claim gave, max_attempts is 1 to 10000';
    end if;
    perform oncely.check_failure(reason, array['handler_rejected', 'poison', 'invalid_json', 'crash'], error_code);
    perform oncely.check_short(queue, worker, trace_id);
    if body is not null then
        perform oncely.check_message(queue, exchange, routing_key, properties, headers);
    end if;
    if delay is not null then
        delay := oncely.checked_time('delay', delay, interval '0', interval '366 days');
    end if;
    perform oncely.check_right('consume', consumer, tenant);
    ends := clock_timestamp() + oncely.claimed_retention(tenant, retention);
    again := at + delay;
    for round in 1..8 loop
        select i.status, i.fingerprint, i.attempts, i.reason, i.last_error, i.claimed_in,
            i.fencing_token is not null as is_leased, i.not_before
        into known
        from oncely.idempotency_keys as i
        where i.tenant = tenant and i.consumer = consumer and i.key = key
        for update;
        if not found then
            insert into oncely.idempotency_keys (
                tenant, consumer, key, status, attempts, created_at, fingerprint, expires_at
            )
            values (tenant, consumer, key, 'IN_PROGRESS', 0, at, print, ends)
            on conflict on constraint idempotency_keys_pkey do nothing;
            continue;
        end if;
        if known.claimed_in = own and known.reason = 'incomplete_claim' then
            -- Claimed in this transaction, with its work rolled back to a savepoint: the claim is given back in any
            -- case.
            update oncely.idempotency_keys as i
            set status = 'IN_PROGRESS', attempts = i.attempts - 1, completed_at = null, reason = null,
                last_error = null, claimed_in = null
            where i.tenant = tenant and i.consumer = consumer and i.key = key;
            known.status := 'IN_PROGRESS';
            known.attempts := known.attempts - 1;
        end if;
        outcome := case
            when known.fingerprint is not null and print is null and on_conflict = 'dead_letter' then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, known.is_leased, on_conflict)
        end;
        attempts := known.attempts;
        exit;
    end loop;
    if outcome is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be looked at',
            hint = 'Try again.';
    end if;
    case outcome
        when 'duplicate' then
            perform oncely.await_standby();
            return;
        when 'conflict' then
            final_reason := 'key_conflict';
            detail := 'this key came before with another payload';
        when 'given_up' then
            final_reason := known.reason;
            detail := concat_ws(': ', 'given up before', known.last_error);
        when 'leased' then
            -- The run under a lease reports the outcome, as long as it exists.
            if known.not_before > at then
                outcome := 'retry';
                return;
            end if;
            outcome := 'given_up';
            final_reason := 'outcome_unknown';
            detail := 'runs under leases (oncely.claim_lease) began this message: it runs under one only';
        when 'retake' then
            is_charged := true;
            outcome := case when given_up then 'given_up' else 'retry' end;
            -- Not the message's fault; or recorded already, by an earlier call with a lost reply. A recorded final
            -- verdict reads as given up: a final verdict that meets such a count comes after the attempt of a copy.
            if (known.attempts >= attempt and not given_up) or (class = 'environment' and reason is null) then
                outcome := 'retry';
                return;
            end if;
            attempts := case when attempt > 0 then greatest(known.attempts + 1, attempt) else known.attempts end;
            final_reason := case when given_up then coalesce(why, 'attempts_exhausted') end;
            update oncely.idempotency_keys as i
            set status = case when given_up then 'FAILED' else 'IN_PROGRESS' end::oncely.key_status,
                attempts = fail.attempts, completed_at = case when given_up then at end, reason = final_reason,
                last_error = detail, claimed_in = null, fingerprint = coalesce(print, i.fingerprint),
                not_before = case when not given_up then again end, expires_at = ends,
                -- The process is alive: it reports this failure.
                crash_attempts = case when given_up then i.crash_attempts else 0 end,
                marked_pid = null, marked_backend_start = null
            where i.tenant = tenant and i.consumer = consumer and i.key = key;
    end case;
    perform oncely.record_decision(
        tenant, consumer, key, case when outcome = 'retry' then 'retried' else 'dead_lettered' end, at,
        -- A final verdict after a copy's attempt is the next attempt, as in the row.
        case when is_charged and outcome = 'given_up' and attempt > 0 then attempts else attempt end,
        queue, worker, trace_id, reason => final_reason, error_code => error_code, detail => detail
    );
    if outcome <> 'retry' then
        stored := body is not null and oncely.store_letter(
            tenant, consumer, key, print, final_reason, error_code, detail,
            case when is_charged then attempts else 0 end, at, queue, oncely.worker_name(worker), trace_id, body,
            properties, headers, exchange, routing_key
        );
    end if;
end
$$;
comment on function oncely.fail is
    'Records that a message failed, after its work was rolled back: retry (with delay: not before it is over), or '
    'given_up or conflict (acknowledge it where stored, by its body, else dead-letter it), or duplicate (acknowledge '
    'it); reserved: elsewhere (not in this cell: requeue it). ONC16: no right. Protocol version 1.';
revoke execute on function oncely.fail from public;

-- end of functions

-- Defines operators' actions on a key, beside freeing it with its dead letter.

-- from functions/settle_claim.sql
create or replace function oncely.settle_claim(
    tenant text, consumer text, key text, took_effect boolean, note text default null, os_user text default null,
    -- The state that the operator has seen; null: not compared.
    seen_attempts integer default null, seen_token bigint default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    held record;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    select i.attempts, oncely.reopen_steps(i.steps, false) as steps, oncely.has_done(i.steps) as has_done,
        -- The retention starts again.
        oncely.bounded(at + (i.expires_at - coalesce(i.completed_at, i.created_at))) as expires_at
    into held
    from oncely.idempotency_keys as i
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and (
          i.status = 'FAILED'
          -- Ran under a lease, and is no longer held.
          or (
              i.status = 'IN_PROGRESS' and i.fencing_token is not null
              and (i.owner is null or i.not_before <= at)
          )
      )
      -- Another run may have ended since the operator looked, with an unknown outcome, too.
      and (
          seen_attempts is null
          or (i.attempts = seen_attempts and i.fencing_token is not distinct from seen_token)
      )
    for update;
    if not found then
        return false;
    end if;
    if settle_claim.took_effect then
        update oncely.idempotency_keys as i
        set status = 'COMPLETED', completed_at = coalesce(i.completed_at, at), reason = null, last_error = null,
            owner = null, run_ends_at = null, not_before = null
        where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key;
        -- Once the key is collected, only the trail remembers it: then a letter of it must not run. The operator's name
        -- is in operator_actions, which not every reader of the trail may read.
        insert into oncely.audit (
            tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker
        )
        values (
            settle_claim.tenant, at, held.attempts, settle_claim.consumer, settle_claim.key, '', 'completed',
            'settled by hand', 'operator'
        );
    else
        -- A no counts like a refused call: the key begins afresh, in the next round.
        update oncely.idempotency_keys as i
        set status = 'IN_PROGRESS', completed_at = null, reason = null, last_error = null, owner = null,
            run_ends_at = null, attempts = 0, crash_attempts = 0, error_code = null, not_before = at,
            expires_at = held.expires_at, steps = held.steps,
            -- With no step known to be done, the key may run without a lease, too.
            fencing_token = case when held.has_done then i.fencing_token end
        where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key;
    end if;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        settle_claim.tenant, oncely.uuid_v7(at), at, concat(session_login, ' (' || left(os_user, 255) || ')'),
        'settle_claim',
        jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect),
        1, left(note, 8000)
    );
    return true;
end
$$;
comment on function oncely.settle_claim is
    'Says of a key that was given up, for whatever reason, or of one that runs under leases left open, whether it took '
    'effect (COMPLETED) or not (may run again with all its attempts, and the steps that began in their next round), '
    'after an operator has looked. False where the key is none of these. For operators.';
revoke execute on function oncely.settle_claim from public;

-- from functions/park.sql
-- Sets a harmful message aside by hand: gives its key up before the message comes again, so that it becomes a dead
-- letter without having run.
create or replace function oncely.park(
    tenant text, consumer text, key text, why text, os_user text, out outcome text, out known_reason text
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    text_kept text := 'set aside by hand' || coalesce(': ' || left(park.why, 1000), '');
    known record;
begin
    perform oncely.check_argument('tenant', park.tenant), oncely.check_argument('consumer', park.consumer),
        oncely.check_argument('key', park.key);
    for round in 1..8 loop
        -- Waits for the session that has the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, reason, last_error
        )
        values (park.tenant, park.consumer, park.key, 'FAILED', 0, at, at, 'parked', text_kept)
        on conflict (tenant, consumer, key) do nothing;
        if found then
            outcome := 'parked';
            exit;
        end if;
        select i.status, i.reason, i.owner into known
        from oncely.idempotency_keys as i
        where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key
        for update;
        continue when not found;
        known_reason := known.reason;
        case
            when known.status = 'COMPLETED' then
                outcome := 'completed';
            when known.status = 'FAILED' then
                outcome := 'given_up';
            -- The run may be making an external call: revoke its lease first (oncely.revoke_lease).
            when known.owner is not null then
                outcome := 'held';
            else
                update oncely.idempotency_keys as i
                set status = 'FAILED', completed_at = at, reason = 'parked', last_error = text_kept, expires_at = null,
                    not_before = null
                where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key;
                outcome := 'parked';
        end case;
        exit;
    end loop;
    if outcome is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be parked',
            hint = 'Try again.';
    end if;
    if outcome = 'parked' then
        perform oncely.record_action(
            park.tenant, 'park',
            jsonb_build_object('tenant', park.tenant, 'consumer', park.consumer, 'key', park.key), 1, park.why,
            park.os_user
        );
    end if;
end
$$;
comment on function oncely.park is
    'Sets a message aside by hand: its key is given up with the reason parked, so that the next delivery is '
    'dead-lettered without having run. Outcome: parked; completed (it took effect), given_up (before, for '
    'known_reason) or held (a run has it by a lease), and nothing was changed. Recorded in operator_actions.';
revoke execute on function oncely.park from public;

-- from functions/mirror_again.sql
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

-- from functions/seed_keys.sql
-- Inserts keys that a consumer had processed before it had Oncely, by the thousand: as COMPLETED, without a fingerprint
-- (payloads are unknown, so the key alone decides). Adds a trail row for each, at the time of the seeding (sealed spans
-- stay sealed), because the trail is read once the key is collected. Adds no mirror record: PostgreSQL knows the keys,
-- and oncely.mirror_again writes them.
--
-- Takes arrays, no temporary table: a function that runs as its owner must not read a name that may be a caller's view.
create or replace function oncely.seed_keys(
    consumer text, tenants text[], keys text[], completed timestamptz[], retention interval default null,
    out seeded bigint, out known bigint, out too_old bigint, out conflicts jsonb
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at constant timestamptz := clock_timestamp();
    asked constant integer := cardinality(seed_keys.tenants);
    -- Keys that are still remembered.
    of_tenants text[];
    their_keys text[];
    their_times timestamptz[];
    -- Another database's clock may be slightly ahead: a time just ahead counts as now.
    times constant timestamptz[] := array(
        select case when c.completed > at + interval '15 minutes' then c.completed else least(c.completed, at) end
        from unnest(seed_keys.completed) with ordinality as c (completed, place)
        order by c.place
    );
    wrong record;
    young bigint;
    there bigint;
begin
    perform oncely.check_argument('consumer', seed_keys.consumer);
    if (asked between 1 and 10000 and cardinality(seed_keys.keys) = asked and cardinality(times) = asked)
        is not true
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: seed_keys takes from 1 to 10000 tenants, and as many keys and times';
    end if;
    if seed_keys.retention is not null then
        retention := oncely.checked_time(
            'retention', seed_keys.retention, interval '1 microsecond', interval '36525 days'
        );
    end if;
    select u.tenant, u.key, u.completed into wrong
    from unnest(seed_keys.tenants, seed_keys.keys, times) as u (tenant, key, completed)
    where (
        octet_length(u.tenant) between 1 and 255 and octet_length(u.key) between 1 and 255
        and u.completed between '1970-01-01 00:00:00+00' and at
    ) is not true
    limit 1;
    if found then
        perform oncely.check_argument('tenant', wrong.tenant), oncely.check_argument('key', wrong.key);
        raise exception using errcode = 'ONC11',
            message = format('oncely: a key was completed at %s', wrong.completed),
            hint = 'Between 1970 and now, by the database''s clock (15 minutes ahead count as now); or null for now.';
    end if;
    with memories as (
        select t.tenant,
            oncely.forgotten_before(
                at,
                coalesce(
                    oncely.claimed_retention(t.tenant, seed_keys.retention),
                    oncely.tenant_retention(
                        at, c.retention, c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention,
                        l.former_until
                    )
                ),
                coalesce(c.paused, '{}')
            ) as forgotten
        from (select distinct u.tenant from unnest(seed_keys.tenants) as u (tenant)) as t
        cross join oncely.cell as e
        left join oncely.consumers as c on c.consumer = seed_keys.consumer
        left join oncely.tenant_limits as l on l.tenant = t.tenant
    )
    select array_agg(u.tenant order by u.place), array_agg(u.key order by u.place),
        array_agg(u.completed order by u.place), count(distinct (u.tenant, u.key))
    into of_tenants, their_keys, their_times, young
    from unnest(seed_keys.tenants, seed_keys.keys, times) with ordinality as u (tenant, key, completed, place)
    join memories as m on m.tenant = u.tenant
    where (u.completed <= m.forgotten) is not true;
    too_old := asked - coalesce(cardinality(of_tenants), 0);
    -- In key order, as workers claim them.
    with given as (
        select distinct on (u.tenant collate "C", u.key collate "C") u.tenant, u.key, u.completed
        from unnest(of_tenants, their_keys, their_times) as u (tenant, key, completed)
        order by u.tenant collate "C", u.key collate "C", u.completed desc
    ),
    fresh as (
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, expires_at
        )
        select g.tenant, seed_keys.consumer, g.key, 'COMPLETED', 0, g.completed, g.completed,
            g.completed + oncely.claimed_retention(g.tenant, seed_keys.retention)
        from given as g
        order by g.tenant collate "C", g.key collate "C"
        on conflict (tenant, consumer, key) do nothing
        returning tenant, key, completed_at
    ),
    told as (
        insert into oncely.audit (
            tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker, login
        )
        select f.tenant, at, 0, seed_keys.consumer, f.key, '', 'completed',
            'seeded: processed elsewhere at '
                || to_char(f.completed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            'oncely keys seed', session_login
        from fresh as f
    )
    select count(*) into seeded from fresh;
    -- A separate statement, with a snapshot of its own, sees other sessions' keys.
    select count(*),
        coalesce(
            jsonb_agg(
                jsonb_build_object('tenant', i.tenant, 'key', i.key, 'status', i.status, 'reason', i.reason)
                order by i.tenant, i.key
            ) filter (where i.status <> 'COMPLETED'),
            '[]'
        )
    into there, conflicts
    from (
        select distinct u.tenant, u.key from unnest(of_tenants, their_keys) as u (tenant, key)
    ) as g
    join oncely.idempotency_keys as i
        on i.tenant = g.tenant and i.consumer = seed_keys.consumer and i.key = g.key;
    if there <> young then
        raise exception using errcode = 'ONC14',
            message = 'oncely: a key was collected while it was seeded', hint = 'Try again.';
    end if;
    known := asked - too_old - seeded - jsonb_array_length(conflicts);
end
$$;
comment on function oncely.seed_keys is
    'Makes keys known as COMPLETED that were processed before the consumer had Oncely, with a row of the trail each; '
    'keys that are known stay as they are. Says how many were new, known or named twice, and past the retention; '
    'conflicts are those that are FAILED or IN_PROGRESS here. A retention makes keys carry their own end, as '
    'oncely.claim does. For operators.';
revoke execute on function oncely.seed_keys from public;

-- from functions/list_keys.sql
-- Lists keys (see oncely.visible_tenants), page by page along an index, without responses, which an auditor may not
-- read.
create or replace function oncely.list_keys(
    of_tenant text default null, of_consumer text default null, of_status oncely.key_status default null,
    since timestamptz default null, until timestamptz default null, behind timestamptz default null,
    behind_tenant text default null, behind_consumer text default null, behind_key text default null,
    most bigint default 100
)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, crash_attempts integer,
    created_at timestamptz, completed_at timestamptz, expires_at timestamptz, not_before timestamptz, reason text,
    error_code text, last_error text
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the status, to use its partial index.
set plan_cache_mode = force_custom_plan
-- Prevents a scan of a large table under outdated statistics.
set enable_seqscan = off
set enable_bitmapscan = off
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    if of_status is null then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.tenant = of_tenant
            and (visible is null or i.tenant = any (visible))
            and (of_consumer is null or i.consumer = of_consumer)
            and (behind_consumer is null or (i.consumer, i.key) > (behind_consumer, behind_key))
        order by i.consumer, i.key
        limit most;
    elsif of_status = 'IN_PROGRESS' then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.created_at >= since)
            and (until is null or i.created_at < until)
            and (
                behind is null
                or i.created_at <= behind and (i.created_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.created_at desc, i.tenant desc, i.key desc
        limit most;
    else
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.completed_at >= since)
            and (until is null or i.completed_at < until)
            and (
                behind is null
                or i.completed_at <= behind and (i.completed_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.completed_at desc, i.tenant desc, i.key desc
        limit most;
    end if;
end
$$;
comment on function oncely.list_keys is
    'Keys without what their handlers answered: without a status those of a tenant, by consumer and key; else those of '
    'a consumer, the newest first (by their end; of IN_PROGRESS by their beginning). For operators and auditors; a '
    'member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_keys from public;

-- from functions/find_key.sql
create or replace function oncely.find_key(of_key text, of_tenant text default null, of_consumer text default null)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, created_at timestamptz,
    completed_at timestamptz, expires_at timestamptz, fingerprint bytea, http_status smallint, reason text,
    last_error text, not_before timestamptz, owner text, fencing_token bigint
)
language plpgsql stable security definer rows 10
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select i.tenant, i.consumer, i.key, i.status::text, i.attempts, oncely.bounded(i.created_at),
        oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), i.fingerprint, i.http_status, i.reason,
        i.last_error, oncely.bounded(i.not_before), i.owner, i.fencing_token
    from (
        -- The primary key begins with the tenant: an unknown one is found through the trail's index on the key's hash.
        select a.tenant, a.consumer
        from oncely.audit as a
        where of_tenant is null and hashtextextended(a.key, 0) = hashtextextended(of_key, 0) and a.key = of_key
            and (visible is null or a.tenant = any (visible))
        -- Undecided keys are not in the trail: claimed and left, at work, parked. They are few, in the partial indexes.
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'FAILED' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'IN_PROGRESS' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where k.tenant = of_tenant and k.key = of_key
            -- Checked before the index is read: the session's counters would reveal whether the key exists.
            and (visible is null or of_tenant = any (visible))
    ) as n
    join oncely.idempotency_keys as i on i.tenant = n.tenant and i.consumer = n.consumer and i.key = of_key
    where (visible is null or i.tenant = any (visible))
        and (of_consumer is null or i.consumer = of_consumer)
    order by i.tenant, i.consumer;
end
$$;
comment on function oncely.find_key is
    'What is known of a key, without what its handlers answered, under each tenant and consumer that has it. For '
    'operators and auditors; a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.find_key from public;

-- from functions/list_retentions.sql
create or replace function oncely.list_retentions(at timestamptz, of_tenants text[])
returns table (tenant text, consumer text, retention interval)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select t.tenant, c.consumer, oncely.tenant_retention(
        at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until), c.redelivery_horizon,
        e.mirror_ttl, l.retention, l.former_retention, l.former_until
    )
    from unnest(of_tenants) as t (tenant)
    cross join oncely.consumers as c
    cross join oncely.cell as e
    left join oncely.tenant_limits as l on l.tenant = t.tenant
    where visible is null or t.tenant = any (visible);
end
$$;
comment on function oncely.list_retentions is
    'For how long keys of tenants are kept, by consumer, pauses left aside. For operators and auditors; a member of '
    'oncely_tenant_auditor is told of its tenants.';
revoke execute on function oncely.list_retentions from public;

-- end of functions
