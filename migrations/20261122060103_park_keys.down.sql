drop function oncely.park(text, text, text, text);
