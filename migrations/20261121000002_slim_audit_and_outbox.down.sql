alter table oncely.outbox reset (toast_tuple_target);
alter table oncely.outbox alter column tags set storage extended;

comment on column oncely.audit.id is 'Random (version 7); says nothing about order.';
alter table oncely.audit add constraint audit_pkey primary key (tenant, occurred_at, id);
