-- A handler that keeps all that it is given, and then does what the header "do" says.
create table app.seen of oncely.message;
create table app.indexed (value text not null check (value <> 'refused'), short varchar(3));
create unique index on app.indexed (value);
insert into app.indexed values ('taken');

create function app.recurse(depth integer) returns integer language plpgsql as $$
begin
    return app.recurse(depth + 1);
end
$$;

create function app.witness(message oncely.message) returns jsonb language plpgsql as $$
declare
    value text := message.payload ->> 'value';
begin
    insert into app.seen select message.*;
    case message.headers ->> 'do'
        when 'reject' then perform oncely.reject('no such account', 'account 7');
        when 'cast' then perform value::integer;
        when 'divide' then perform 1 / 0;
        when 'date' then perform value::timestamptz;
        when 'text' then perform convert_from(message.body, 'UTF8');
        when 'long' then insert into app.indexed (value, short) values (message.key, 'four');
        when 'log' then perform ln(0::numeric);
        when 'match' then perform 'x' ~ value;
        when 'index' then insert into app.indexed (value) select string_agg(md5(n::text), '') from generate_series(1, 100) as n;
        when 'recurse' then perform app.recurse(1);
        when 'fail' then raise exception 'boom';
        when 'fail_once' then
            if message.attempt = 1 then raise exception 'boom'; end if;
        when 'unique' then insert into app.indexed (value) values ('taken');
        when 'null' then insert into app.indexed (value) values (null);
        when 'check' then insert into app.indexed (value) values ('refused');
        -- The second one of a number is found out only at COMMIT.
        when 'deferred' then insert into app.numbers values ('1'), ('1');
        when 'assert' then assert false, 'never';
        when 'cancel' then raise exception using errcode = '57014';
        when 'deadlock' then raise exception using errcode = '40P01';
        when 'unknown' then raise exception using errcode = 'ZZ999';
        else null;
    end case;
    return jsonb_build_object('done', message.attempt);
end
$$;

create function app.witness_batch(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
declare
    message oncely.message;
begin
    foreach message in array messages loop
        return next (message.seq, app.witness(message))::oncely.result;
    end loop;
end
$$;
