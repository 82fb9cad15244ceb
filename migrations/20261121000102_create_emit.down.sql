do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_emitter') then
        revoke usage on schema oncely from oncely_emitter;
    end if;
end
$$;
drop function oncely.emit(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message);
drop function oncely.emit(text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message);
drop function oncely.emit(text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message);
drop function oncely.add_event(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message);
drop function oncely.uuid_v7(timestamptz);
