-- Names are looked up along the session's search_path, and where types don't fit exactly an object of any schema on it may win over
-- pg_catalog's: whoever may create in one (public, before PostgreSQL 15) had his functions run with the rights of whoever called ours.
-- So: our functions and statements see pg_catalog alone; a handler sees what its role and database say, and the text that calls it
-- says of everything where it is.
set local search_path = pg_catalog, pg_temp;

-- Parsed now, once and for all: it needs no setting, and stays as cheap as it was, once for each event.
create or replace function oncely.uuid_v7(at timestamptz) returns uuid
language sql volatile parallel safe
begin atomic
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6
            ),
            52, 1), 53, 1),
        'hex')::uuid;
end;

drop function oncely.handle_each(text, boolean, boolean, oncely.message[]);
drop function oncely.handle_parts(text, boolean, boolean, oncely.message[]);

-- error_place: names of the schema, which hold nothing of the message; the text may.
create function oncely.handle_each(handler text, batch boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text, error_place text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    message oncely.message;
    answers integer;
    call text := case
        when batch then format('select r.seq, r.response, pg_catalog.count(*) over () from %s(array[$1]) as r (seq, response)', oncely.handler_name(handler, batch))
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
            -- The handler's own; an error takes it back.
            set local search_path to default;
            execute call into answered, response, answers using message;
            set local search_path = pg_catalog, pg_temp;
            if answers is distinct from 1 or answered is distinct from message.seq then
                raise exception using errcode = 'ONC03',
                    message = format('the batch handler returned %s rows for one message', coalesce(answers, 0));
            end if;
        exception
            when others then
                response := null;
                error_code := sqlstate;
                error_message := sqlerrm;
                get stacked diagnostics constraint_name = constraint_name, table_name = table_name, column_name = column_name;
                error_place := concat_ws(
                    ', ', 'constraint ' || nullif(constraint_name, ''), 'table ' || nullif(table_name, ''), 'column ' || nullif(column_name, '')
                );
                -- What a handler says on purpose. Other errors' details hold data, such as the values of a violated key.
                if sqlstate = 'ONC01' then
                    get stacked diagnostics detail = pg_exception_detail;
                    error_message := concat_ws(': ', nullif(sqlerrm, ''), nullif(detail, ''));
                end if;
        end;
        return next;
    end loop;
end
$$;

create function oncely.handle_parts(handler text, batch boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text, error_place text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    size integer := greatest(1, ceil(cardinality(messages) / 16.0)::integer);
    quarter integer := ceil(size / 4.0)::integer;
    call text := case
        when batch then format(
            'select pg_catalog.array_agg((r.seq, r.response)::oncely.result) from %s($1) as r (seq, response)', oncely.handler_name(handler, batch)
        )
        else format('select pg_catalog.array_agg((m.seq, %s(m))::oncely.result) from pg_catalog.unnest($1) as m', oncely.handler_name(handler, batch))
    end;
    part oncely.message[];
    few oncely.message[];
    answers oncely.result[];
    failed boolean;
begin
    for head in 1 .. cardinality(messages) by size loop
        part := messages[head : head + size - 1];
        failed := false;
        begin
            -- The handler's own; an error takes it back.
            set local search_path to default;
            -- Kept in a variable: rows that RETURN QUERY has returned stay returned when the subtransaction is rolled back.
            execute call into answers using part;
            set local search_path = pg_catalog, pg_temp;
        exception
            when others then
                failed := true;
        end;
        if not failed then
            return query select a.seq, a.response, null::text, null::text, null::text from unnest(answers) as a;
            continue;
        end if;
        for start in 1 .. cardinality(part) by quarter loop
            failed := false;
            few := part[start : start + quarter - 1];
            begin
                set local search_path to default;
                execute call into answers using few;
                set local search_path = pg_catalog, pg_temp;
            exception
                when others then
                    failed := true;
            end;
            if failed then
                return query select e.* from oncely.handle_each(handler, batch, needs_json, few) as e;
            else
                return query select a.seq, a.response, null::text, null::text, null::text from unnest(answers) as a;
            end if;
        end loop;
    end loop;
end
$$;

comment on function oncely.handle_each(text, boolean, boolean, oncely.message[]) is 'Runs the handler on each message in a subtransaction of its own and returns errors as rows.';
comment on function oncely.handle_parts(text, boolean, boolean, oncely.message[]) is 'Runs the handler on parts of a batch, each in a subtransaction; in a part that fails on smaller ones, down to single messages, whose errors it returns as rows.';

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_worker') then
        grant execute on function oncely.handle_each(text, boolean, boolean, oncely.message[]), oncely.handle_parts(text, boolean, boolean, oncely.message[]) to oncely_worker;
    end if;
end
$$;

-- Parsed and planned while the handler's search_path is set (a handler that is a plain expression becomes part of the plan), so
-- nothing in it is looked up along that. After the handler's last row our own path is set for what follows in the transaction; where
-- nothing does, COMMIT runs what the handler deferred.
create or replace function oncely.handler_calls(handler text, batch boolean, out together text, out fresh text)
language plpgsql stable
as $$
declare
    answers text := 'select pg_catalog.array_agg(r.seq), '
        'case when pg_catalog.count(r.response) operator(pg_catalog.>) 0 then pg_catalog.array_agg(r.response) end';
    pinned text := 'pg_catalog.set_config(''search_path'', ''pg_catalog, pg_temp'', true)';
    -- OFFSET 0: what a handler that is declared stable returns would otherwise be made up anew for each mention of it.
    call text := case
        when batch then ' from (select b.seq, b.response from %s(%s) as b (seq, response) offset 0) as r (seq, response)'
        else ' from (select m.seq, %s(m) from pg_catalog.unnest(%s) as m offset 0) as r (seq, response)'
    end;
    name text := oncely.handler_name(handler, batch);
begin
    together := answers || ', ' || pinned || format(call, name, '$1');
    fresh := answers
        || ', oncely.record_fresh($1, $3, $4, $5, $6, $7, $8, $9, $10, pg_catalog.array_agg(r.seq), pg_catalog.count(r.response) operator(pg_catalog.>) 0)'
        || ', case when not $10 then ' || pinned || ' end'
        || format(call, name, 'oncely.claim_fresh($1, $2, $3, $4)');
end
$$;

-- All that is not parsed already.
do $$
declare
    one regprocedure;
begin
    for one in
        select p.oid
        from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace and p.prosqlbody is null
          and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', one);
    end loop;
end
$$;
