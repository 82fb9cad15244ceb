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
