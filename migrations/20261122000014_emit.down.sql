set local search_path = pg_catalog, pg_temp;

drop function oncely.write_replies;
drop function oncely.emit(
    text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
);
drop function oncely.emit(
    text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
);
drop function oncely.emit(
    text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
);
drop function oncely.add_event;
drop function oncely.check_room;
