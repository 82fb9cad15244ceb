drop function oncely.handle(text, boolean, boolean, boolean, oncely.message[]);
drop function oncely.handle_each(text, boolean, boolean, oncely.message[]);
drop function oncely.handle_all(text, boolean, oncely.message[]);
drop function oncely.try_jsonb(bytea);
drop function oncely.handler_name(text, boolean);
drop function oncely.reject(text, text);
drop type oncely.result;
drop type oncely.message;
