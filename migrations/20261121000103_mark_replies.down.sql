alter table oncely.events drop column reply;
comment on column oncely.operator_actions.verb is 'What: requeue or discard.';
