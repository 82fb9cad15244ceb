-- Divides what relays and collections work on into two units, and tenants into groups of one, as on an engine that spreads
-- tables over nodes. A view stands for a part of a table; its column ctid is that of the table's row.
do $$
declare
    name text;
begin
    foreach name in array array['idempotency_keys', 'mirror_queue', 'events', 'dead_letters', 'ordering_keys'] loop
        for part in 0..1 loop
            execute format(
                -- With the rights and policies of the one who asks.
                'create view oncely.%I with (security_invoker = true) as '
                'select t.ctid, t.* from oncely.%I as t where oncely.bucket(t.tenant) %% 2 = %s',
                name || '_part_' || part, name, part
            );
            execute format(
                'grant select, update on oncely.%I to oncely_relay, oncely_operator, oncely_auditor',
                name || '_part_' || part
            );
        end loop;
    end loop;
end
$$;

create or replace function oncely.units(out unit text, out tables jsonb) returns setof record
language sql stable
begin atomic
    select p.part::text, jsonb_object_agg(t.name, format('oncely.%s_part_%s', t.name, p.part))
    from generate_series(0, 1) as p (part)
    cross join unnest(
        array['idempotency_keys', 'mirror_queue', 'events', 'dead_letters', 'ordering_keys']
    ) as t (name)
    group by p.part;
end;

create or replace function oncely.in_group(tenant text, tenants text[]) returns boolean
language sql immutable
begin atomic
    select tenant = any (tenants);
end;

create or replace function oncely.tenant_groups(tenants text[]) returns setof text[]
language sql immutable
begin atomic
    select array[t.tenant] from unnest(tenants) as t (tenant) group by t.tenant order by t.tenant collate "C";
end;
