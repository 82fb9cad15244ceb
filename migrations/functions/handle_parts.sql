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
