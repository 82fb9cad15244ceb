drop function oncely.accept_clock(text, text);
drop function oncely.observe_clock();
drop table oncely.upkeep;
