create or replace function oncely.handle_parts(handler text, batch boolean, needs_json boolean, messages oncely.message[])
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
