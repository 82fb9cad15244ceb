drop function oncely.handle_parts(text, boolean, boolean, oncely.message[]);

create function oncely.handle(handler text, batch boolean, each_alone boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
begin
    if each_alone then
        return query select e.* from oncely.handle_each(handler, batch, needs_json, messages) as e;
    else
        return query select a.seq, a.response, null::text, null::text from oncely.handle_all(handler, batch, messages) as a;
    end if;
end
$$;
comment on function oncely.handle(text, boolean, boolean, boolean, oncely.message[]) is 'What a worker calls: the messages'' results, in any order.';
