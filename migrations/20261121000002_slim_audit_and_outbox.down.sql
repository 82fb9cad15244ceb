alter table oncely.outbox reset (toast_tuple_target);
alter table oncely.outbox alter column tags set storage extended;

alter table oncely.audit add column id uuid not null default gen_random_uuid();
comment on column oncely.audit.id is 'Random; says nothing about order.';
alter table oncely.audit alter column id drop default;
alter table oncely.audit add constraint audit_pkey primary key (tenant, occurred_at, id);
