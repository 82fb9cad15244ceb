-- Makes the keys of these letters runnable again, if the key was given up with this very payload.
select oncely.free_keys($1, $2, $3) as "freed!"
