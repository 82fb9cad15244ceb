create or replace function oncely.check_argument(name text, value text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null or octet_length(value) not between 1 and 255 then
        raise exception using errcode = 'ONC11',
            message = format(
                'oncely: %s %s', name,
                case when value is null then 'is null' else format('has %s bytes', octet_length(value)) end
            ),
            hint = 'It has 1 to 255 bytes.';
    end if;
    -- A claimant with such a name would treat observed messages as processed.
    if name = 'consumer' and value like '%.observe' then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a name that ends with .observe is that of a consumer that only observes';
    end if;
end
$$;
comment on function oncely.check_argument is 'Refuses a name that can''t be one (SQLSTATE ONC11).';
