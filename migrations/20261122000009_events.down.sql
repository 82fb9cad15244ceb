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
drop function oncely.notify_relay;
drop function oncely.check_room;

drop function oncely.list_events;
drop function oncely.collect_ordering_keys;
drop function oncely.change_events;
drop function oncely.delete_events;
drop table oncely.ordering_keys;
drop table oncely.events;

drop function oncely.refuse;
drop function oncely.reject;
-- Fails while functions of users take these types.
drop type oncely.result;
drop type oncely.message;
