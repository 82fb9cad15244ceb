-- locks oncely.audit against everybody
-- locks oncely.dead_letters against everybody
-- locks oncely.events against everybody
-- locks oncely.idempotency_keys against everybody
-- locks oncely.mirror_queue against everybody
set local search_path = pg_catalog, pg_temp;

-- Of a trial: what an expanding migration may do under the programs of the release before. Columns that they don't name, and functions
-- that are the same by another definition, so that what they have prepared is out of date.
alter table oncely.idempotency_keys
    add column upgrade_trial text, add column upgrade_trial_number integer not null default 7;
alter table oncely.audit add column upgrade_trial text;
alter table oncely.mirror_queue add column upgrade_trial text;
alter table oncely.events add column upgrade_trial text;
alter table oncely.dead_letters add column upgrade_trial text;

do $again$
declare
    definition text;
begin
    for definition in
        select pg_get_functiondef(p.oid) from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace and p.prokind = 'f'
    loop
        execute definition;
    end loop;
end
$again$;
