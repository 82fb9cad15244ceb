-- One bad message in a hundred must not bring back one subtransaction per message: a batch of 256 with two bad ones runs in
-- 16 parts, and only the parts with the bad ones go on message by message.
drop function oncely.handle(text, boolean, boolean, boolean, oncely.message[]);

-- Sixteen parts; in a part that fails four quarters, and in a quarter that fails each message. A failed subtransaction leaves
-- PostgreSQL's list of running ones (64 a backend; beyond that every reader gets slower) and a good one stays in it, so
-- eight bad messages cost at most 16 + 8 * (3 + 3) of them.
create function oncely.handle_parts(handler text, batch boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    size integer := greatest(1, ceil(cardinality(messages) / 16.0)::integer);
    quarter integer := ceil(size / 4.0)::integer;
    part oncely.message[];
    answers oncely.result[];
begin
    for head in 1 .. cardinality(messages) by size loop
        part := messages[head : head + size - 1];
        begin
            -- Kept in a variable: rows that RETURN QUERY has returned stay returned when the subtransaction is rolled back.
            answers := array(select (a.seq, a.response)::oncely.result from oncely.handle_all(handler, batch, part) as a);
        exception
            when others then
                answers := null;
        end;
        if answers is not null then
            return query select a.seq, a.response, null::text, null::text from unnest(answers) as a;
            continue;
        end if;
        for start in 1 .. cardinality(part) by quarter loop
            begin
                answers := array(
                    select (a.seq, a.response)::oncely.result
                    from oncely.handle_all(handler, batch, part[start : start + quarter - 1]) as a
                );
            exception
                when others then
                    answers := null;
            end;
            if answers is not null then
                return query select a.seq, a.response, null::text, null::text from unnest(answers) as a;
            else
                return query select e.* from oncely.handle_each(handler, batch, needs_json, part[start : start + quarter - 1]) as e;
            end if;
        end loop;
    end loop;
end
$$;
comment on function oncely.handle_parts(text, boolean, boolean, oncely.message[]) is 'Runs the handler on parts of a batch, each in a subtransaction; in a part that fails on smaller ones, down to single messages, whose errors it returns as rows.';

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_worker') then
        grant execute on function oncely.handle_parts(text, boolean, boolean, oncely.message[]) to oncely_worker;
    end if;
end
$$;
