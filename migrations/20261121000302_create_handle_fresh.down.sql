drop function oncely.handle_fresh(text, boolean, oncely.message[], bytea[], text, text, timestamptz, bigint, uuid, bytea, timestamptz);
