set local search_path = pg_catalog, pg_temp;

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_operator') then
        grant insert on oncely.operator_actions to oncely_operator;
    end if;
end
$$;
comment on column oncely.operator_actions.actor is 'Who: the database''s session user, and the user of the operating system.';
comment on column oncely.operator_actions.verb is 'What: requeue or discard.';
drop function oncely.record_action(text, text, jsonb, bigint, text, text);
