-- Keys that a consumer processed before it had Oncely, made known. The book includes it; a test runs it and then sends copies.
create schema if not exists app;
create table if not exists app.processed_before (tenant text not null, message_id text not null);

-- ANCHOR: seed
do $$
declare
    old record;
    answer text;
begin
    for old in select tenant, message_id from app.processed_before order by 1, 2 loop
        -- No fingerprint: nobody knows the payload any more, so the key alone decides.
        select outcome into answer
        from oncely.claim(old.tenant, 'payments', old.message_id, null, retention => '7 days');
        if answer = 'granted' then
            perform oncely.complete(old.tenant, 'payments', old.message_id, worker => 'seed');
        end if;
    end loop;
end
$$;
-- ANCHOR_END: seed
