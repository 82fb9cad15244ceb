-- Extends a retention by pauses: a copy that comes in a pause waits until its end, so the key that recognises it waits,
-- too. Counts pause by pause: a pause that ended long ago does not hold back later decisions.
create or replace function oncely.forgotten_before(at timestamptz, retention interval, paused tstzmultirange)
returns timestamptz
language plpgsql immutable strict
set search_path = pg_catalog, pg_temp
as $$
declare
    -- In seconds: a day has 24 hours in every time zone. Between 0 and 1000 years: no stored row may make a collection
    -- fail.
    seconds constant double precision := least(greatest(extract(epoch from retention), 0), 31557600000);
    before timestamptz := at - make_interval(secs => seconds);
    -- Reads pauses from here on: a collection calls this for each key, and does not sort years of pauses each time.
    horizon timestamptz := at - make_interval(secs => 2 * seconds);
    span record;
begin
    if isempty(paused) then
        return before;
    end if;
    loop
        before := at - make_interval(secs => seconds);
        for span in
            select lower(p.pause) as began, upper(p.pause) as ended
            from unnest(paused * tstzmultirange(tstzrange(horizon, at))) as p (pause)
            order by lower(p.pause) desc
        loop
            exit when span.ended <= before;
            before := before - make_interval(secs => extract(epoch from span.ended - span.began)::double precision);
        end loop;
        -- A pause cut by the horizon moves the result beyond it, if it counts at all.
        exit when before > horizon or horizon <= lower(paused);
        horizon := at - make_interval(
            secs => 1 + 2 * extract(epoch from at - least(before, horizon))::double precision
        );
    end loop;
    return before;
end
$$;
comment on function oncely.forgotten_before is
    'Until when a memory that lasts so long reaches back: what was decided before may be collected. The time in which '
    'the consumer was paused does not count.';
revoke execute on function oncely.forgotten_before from public;
