drop table oncely.operator_actions;
drop view oncely.dead_letter_groups;
drop table oncely.dead_letters;

create view oncely.dead_letters as
select tenant, consumer, key, occurred_at as dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id
from oncely.audit
where outcome = 'dead_lettered';
comment on view oncely.dead_letters is 'What was given up, and why.';

do $$
declare
    role text;
begin
    for role in select rolname from pg_roles where rolname in ('oncely_operator', 'oncely_auditor') loop
        execute format('grant select on oncely.dead_letters to %I', role);
    end loop;
end
$$;
