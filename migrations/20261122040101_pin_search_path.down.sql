set local search_path = pg_catalog, pg_temp;

create or replace function oncely.uuid_v7(at timestamptz) returns uuid
language sql volatile parallel safe
as $$
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6
            ),
            52, 1), 53, 1),
        'hex')::uuid
$$;

drop function oncely.handle_each(text, boolean, boolean, oncely.message[]);
drop function oncely.handle_parts(text, boolean, boolean, oncely.message[]);

create function oncely.handle_each(handler text, batch boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    message oncely.message;
    answers integer;
    call text := case
        when batch then format('select r.seq, r.response, count(*) over () from %s(array[$1]) as r (seq, response)', oncely.handler_name(handler, batch))
        else format('select $1.seq, %s($1), 1', oncely.handler_name(handler, batch))
    end;
    answered integer;
    detail text;
begin
    foreach message in array messages loop
        seq := message.seq;
        response := null;
        error_code := null;
        error_message := null;
        begin
            if needs_json and message.payload is null then
                raise exception using errcode = 'ONC02', message = 'the body is not JSON that PostgreSQL can hold';
            end if;
            answers := 0;
            execute call into answered, response, answers using message;
            if answers is distinct from 1 or answered is distinct from message.seq then
                raise exception using errcode = 'ONC03',
                    message = format('the batch handler returned %s rows for one message', coalesce(answers, 0));
            end if;
        exception
            when others then
                response := null;
                error_code := sqlstate;
                error_message := sqlerrm;
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
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    size integer := greatest(1, ceil(cardinality(messages) / 16.0)::integer);
    quarter integer := ceil(size / 4.0)::integer;
    call text := case
        when batch then format(
            'select array_agg((r.seq, r.response)::oncely.result) from %s($1) as r (seq, response)', oncely.handler_name(handler, batch)
        )
        else format('select array_agg((m.seq, %s(m))::oncely.result) from unnest($1) as m', oncely.handler_name(handler, batch))
    end;
    part oncely.message[];
    answers oncely.result[];
    failed boolean;
begin
    for head in 1 .. cardinality(messages) by size loop
        part := messages[head : head + size - 1];
        failed := false;
        begin
            -- Kept in a variable: rows that RETURN QUERY has returned stay returned when the subtransaction is rolled back.
            execute call into answers using part;
        exception
            when others then
                failed := true;
        end;
        if not failed then
            return query select a.seq, a.response, null::text, null::text from unnest(answers) as a;
            continue;
        end if;
        for start in 1 .. cardinality(part) by quarter loop
            failed := false;
            begin
                execute call into answers using part[start : start + quarter - 1];
            exception
                when others then
                    failed := true;
            end;
            if failed then
                return query select e.* from oncely.handle_each(handler, batch, needs_json, part[start : start + quarter - 1]) as e;
            else
                return query select a.seq, a.response, null::text, null::text from unnest(answers) as a;
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

create or replace function oncely.handler_calls(handler text, batch boolean, out together text, out fresh text)
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

do $$
declare
    one regprocedure;
begin
    for one in
        select p.oid
        from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace
          and p.proname in (
              'epoch', 'bucket', 'reject', 'handler_name', 'try_jsonb', 'protocol_version', 'check_argument', 'check_call', 'decide',
              'await_standby', 'worker_name', 'error_class', 'claim_fresh', 'record_fresh'
          )
    loop
        execute format('alter function %s reset search_path', one);
    end loop;
end
$$;
