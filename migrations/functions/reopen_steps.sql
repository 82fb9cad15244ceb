-- Reopens steps. A begun step may have happened, and keeps its key for the other side until its call is known as done
-- or refused. open: an operator allows one more call. An operator's no is a refusal: the next round begins.
create or replace function oncely.reopen_steps(steps jsonb, may_have_happened boolean) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when steps is null then null
        else (
            select jsonb_object_agg(
                s.name,
                case
                    when s.step ->> 'state' not in ('started', 'open') then s.step
                    when may_have_happened then s.step || jsonb_build_object('state', 'open')
                    else jsonb_build_object(
                        'state', 'refused', 'round', coalesce((s.step ->> 'round')::integer, 0) + 1, 'token',
                        s.step -> 'token', 'error', 'settled by hand'
                    )
                end
            )
            from jsonb_each(steps) as s (name, step)
        )
    end
$$;
comment on function oncely.reopen_steps is
    'The steps of a key, and those that began may begin again: if they may have happened, as a repeated call with the '
    'same call_key; else in the next round.';
