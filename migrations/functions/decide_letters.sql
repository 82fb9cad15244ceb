-- Records an operator's decisions about letters: a login may change their state only by this function, and by the
-- consequences of a decision (oncely.finish_requeue).
create or replace function oncely.decide_letters(
    verb text, tenants text[], ids uuid[], generations integer[], filter jsonb, reason text, os_user text
)
returns table (tenant text, id uuid, generation integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    becomes constant text := case decide_letters.verb
        when 'requeue' then 'requeueing' when 'discard' then 'discarded'
    end;
    of_tenants text[];
    their_ids uuid[];
    their_generations integer[];
begin
    if becomes is null then
        raise exception using errcode = 'ONC11', message = 'oncely: letters are changed by requeue and discard';
    end if;
    -- Changes a letter only in the given generation: one that has come back since is another case.
    with meant as materialized (
        select d.tenant, d.id
        from unnest(decide_letters.tenants, decide_letters.ids, decide_letters.generations)
            as l (tenant, id, generation)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
        where oncely.in_group(d.tenant, decide_letters.tenants) and d.state in ('waiting', 'requeueing')
        order by d.tenant, d.id
        for update of d
    ), changed as (
        update oncely.dead_letters as d
        set state = becomes, updated_at = at,
            -- No dead-letter queue has a copy of a client's letter.
            swept_at = case when d.from_client and becomes = 'discarded' then at end
        from meant as m
        where oncely.in_group(d.tenant, decide_letters.tenants) and d.tenant = m.tenant and d.id = m.id
        returning d.tenant, d.id, d.generation
    )
    select coalesce(array_agg(c.tenant), '{}'), array_agg(c.id), array_agg(c.generation)
    into of_tenants, their_ids, their_generations
    from changed as c;
    perform oncely.record_action(
        case when of_tenants[1] = all (of_tenants) then coalesce(of_tenants[1], '') else '' end, decide_letters.verb,
        decide_letters.filter, cardinality(of_tenants), decide_letters.reason, decide_letters.os_user
    );
    return query
    select d.tenant, d.id, d.generation
    from unnest(of_tenants, their_ids, their_generations) as d (tenant, id, generation);
end
$$;
comment on function oncely.decide_letters is
    'Decides about open dead letters, and records it in operator_actions: requeue (they are requeueing) or discard. '
    'Returns those that were changed. For operators.';
revoke execute on function oncely.decide_letters from public;
