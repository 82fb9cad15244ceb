-- Groups failures like crates/core/src/letter.rs, except for rare characters.
create or replace function oncely.failure_group(reason text, error_code text, detail text) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select concat(
        reason, '/', coalesce(nullif(error_code, ''), '-'), '/',
        left(
            encode(
                sha256(convert_to(
                    regexp_replace(
                        regexp_replace(
                            detail, E'"[^"]*"|`[^`]*`|“[^”]*”|«[^»]*»|(?<!\\w)''[^'']*''', '"…"', 'g'
                        ),
                        E'[-+]?(?=[-\\w.:,+]*\\d)\\w+(?:[-.:,+]+\\w+)*', '#', 'g'
                    ), 'UTF8'
                )), 'hex'
            ), 8
        )
    )
$$;
comment on function oncely.failure_group is
    'A stable name for what failed alike: reason, SQLSTATE and a hash of the detail without its numbers and quoted '
    'values.';
revoke execute on function oncely.failure_group from public;
