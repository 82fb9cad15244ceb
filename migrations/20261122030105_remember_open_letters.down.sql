set local search_path = pg_catalog, pg_temp;

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_relay') then
        revoke select (consumer, key) on oncely.dead_letters from oncely_relay;
    end if;
end
$$;
drop function oncely.letter_memory(text, text, text, timestamptz, timestamptz);
drop index oncely.dead_letters_requeueing;
