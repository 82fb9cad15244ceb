set local search_path = pg_catalog, pg_temp;

comment on column oncely.operator_actions.verb is 'What: requeue or discard (dead letters), retry_events or discard_events.';
drop function oncely.revoke_rights(text, text, text, text);
drop function oncely.grant_right(text, text, text, text);
drop function oncely.check_right(text, text, text);
drop table oncely.rights;
