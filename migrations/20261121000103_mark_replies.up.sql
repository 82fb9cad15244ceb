-- A reply whose requester is gone is nobody's loss for hours: the relay tries it fewer times than an event.
alter table oncely.events add column reply boolean not null default false;
comment on column oncely.events.reply is 'A handler''s response, for whoever asked for it (reply_to).';
do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_auditor') then
        grant select (reply) on oncely.events to oncely_auditor;
    end if;
end
$$;
comment on column oncely.operator_actions.verb is 'What: requeue or discard (dead letters), retry_events or discard_events.';
