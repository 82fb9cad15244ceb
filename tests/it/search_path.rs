//! Objects of strangers on the search_path: where everybody may create in `public`, nobody's objects there run with our rights, and
//! handlers still find their own.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use testbed::{Database, Redis};

use crate::console::{console, crawl};
use crate::events::wait_beside_good_events;
use crate::gateway::every_statement;
use crate::support::{World, message, program, servers, untried};

/// All that a stranger could think of: for everything in pg_catalog that takes values of any type, or numbers or texts that a literal
/// is not quite, a function or operator of the same name that fits better. Each one that runs is counted (a sequence is not rolled
/// back) and fails.
const STRANGER: &str = r#"
create sequence public.hits;
grant usage on sequence public.hits to public;
create sequence public.planted;

create function public.plant(name text, arguments text, result text) returns void language plpgsql as $plant$
begin
    execute format(
        'create function public.%I(%s) returns %s language plpgsql as %L', name, arguments, result,
        format('begin perform pg_catalog.nextval(''public.hits''); raise exception ''a stranger''''s %%'', %L; end', name || '(' || arguments || ')')
    );
    perform nextval('public.planted');
exception
    when others then null;
end
$plant$;

do $$
declare
    one record;
    kind text;
    other text;
    fit text;
    result text;
    kinds constant text[] := array['text', 'integer', 'bigint', 'boolean', 'uuid', 'timestamptz', 'interval', 'jsonb', 'bytea', 'numeric',
        'double precision', 'name', 'oid', 'text[]', 'uuid[]'];
begin
    for one in
        select p.proname, p.proretset, p.prorettype::regtype::text as returns,
            array(select t::regtype::text from unnest(p.proargtypes::oid[]) with ordinality as a (t, n) order by n) as types,
            p.provariadic = '"any"'::regtype as variadic
        from pg_proc as p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.pronargs between 1 and 4 and p.prorettype <> 'trigger'::regtype
          and p.proname !~ '^(pg_stat_|pg_ls_|has_|ri_fkey|_)' and p.proname !~ '(in|out|recv|send|sel|joinsel|support|typmod)$'
    loop
        if exists (select from unnest(one.types) as t where t ~ '^any' or t = '"any"') then
            foreach kind in array kinds loop
                select string_agg(
                    case when t in ('anyarray', 'anycompatiblearray') then case when kind like '%[]' then kind else kind || '[]' end
                         when t ~ '^"?any' then kind else t end, ', ' order by n)
                into fit from unnest(one.types) with ordinality as a (t, n);
                result := case when one.returns in ('anyarray', 'anycompatiblearray') then case when kind like '%[]' then kind else kind || '[]' end
                    when one.returns ~ '^any' then kind else one.returns end;
                perform public.plant(one.proname, fit, case when one.proretset then 'setof ' else '' end || result);
                if one.variadic then
                    for count in 1 .. 5 loop
                        perform public.plant(one.proname, fit || repeat(', ' || kind, count), result);
                    end loop;
                    perform public.plant(one.proname, fit || ', text', result);
                end if;
            end loop;
        else
            select string_agg(case when t in ('bigint', 'numeric', 'double precision', 'real', 'smallint') then 'integer' else t end, ', ' order by n)
            into fit from unnest(one.types) with ordinality as a (t, n);
            if fit <> array_to_string(one.types, ', ') then
                perform public.plant(one.proname, fit, case when one.proretset then 'setof ' else '' end || one.returns);
            end if;
            for place in 1 .. cardinality(one.types) loop
                continue when one.types[place] not in ('bigint', 'numeric', 'double precision', 'real', 'smallint');
                perform public.plant(one.proname,
                    array_to_string(one.types[:place - 1] || 'integer'::text || one.types[place + 1:], ', '),
                    case when one.proretset then 'setof ' else '' end || one.returns);
            end loop;
        end if;
    end loop;
    foreach kind in array kinds loop
        foreach other in array kinds loop
            perform public.plant('stranger_says', kind || ', ' || other, 'boolean');
            perform public.plant('stranger_adds', kind || ', ' || other, kind);
            for one in
                select o.name, o.adds from (values
                    ('=', false), ('<>', false), ('<', false), ('<=', false), ('>', false), ('>=', false), ('~', false), ('!~', false),
                    ('~~', false), ('@>', false), ('<@', false), ('&&', false), ('?', false),
                    ('+', true), ('-', true), ('*', true), ('/', true), ('||', true), ('->', true), ('->>', true), ('#>>', true)
                ) as o (name, adds)
            loop
                continue when to_regoperator(format('pg_catalog.%s(%s,%s)', one.name, kind, other)) is not null;
                execute format('create operator public.%s (leftarg = %s, rightarg = %s, function = public.%I)',
                    one.name, kind, other, case when one.adds then 'stranger_adds' else 'stranger_says' end);
            end loop;
        end loop;
    end loop;
end $$;
"#;

/// Handlers that find their own objects by their search_path alone, and say of everything else where it is.
const APPLICATION: &str = r"
set search_path = app, pg_catalog;
create table app.done (key text, by text);
create table app.notes (key text);
create function app.work(key text, by text) returns jsonb language plpgsql as $$
begin
    if key operator(pg_catalog.~~) 'reject%' then perform oncely.reject('no such account'); end if;
    if key operator(pg_catalog.~~) 'fail%' then raise exception 'boom'; end if;
    insert into done values (key, by);
    perform oncely.emit('', 'nobody', pg_catalog.convert_to(key, 'UTF8'));
    return pg_catalog.to_jsonb(key);
end $$;
-- An expression, which becomes part of the plan of the statement that calls it.
create function app.one(m oncely.message) returns jsonb language sql as $$ select work(m.key, 'one') $$;
create function app.many(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
begin
    return query select m.seq, work(m.key, 'many') from pg_catalog.unnest(messages) as m;
end $$;
create function app.silent(m oncely.message) returns jsonb language plpgsql as $$
begin
    perform work(m.key, 'silent');
    return null;
end $$;
-- What a handler defers runs at COMMIT.
create function app.note() returns trigger language plpgsql as $$ begin insert into notes values (new.key); return null; end $$;
create constraint trigger note after insert on app.done deferrable initially deferred for each row execute function app.note();
";

async fn run(connection: &mut PgConnection, statements: &'static str) {
    sqlx::raw_sql(statements).execute(connection).await.unwrap();
}

/// Makes `public` everybody's, and has a stranger without any other right plant all that he can think of.
async fn plant(connection: &mut PgConnection) -> String {
    let stranger = format!("stranger_{}", uuid::Uuid::new_v4().simple());
    let role = format!(
        "grant usage, create on schema public to public; create role {stranger}; set role {stranger};
         set search_path = pg_catalog"
    );
    sqlx::raw_sql(AssertSqlSafe(role)).execute(&mut *connection).await.unwrap();
    run(connection, STRANGER).await;
    run(connection, "reset role; set search_path = pg_catalog").await;
    let planted = sqlx::query("select last_value from public.planted").fetch_one(connection).await.unwrap();
    assert!(planted.get::<i64, _>(0) > 1_000, "the stranger is too harmless");
    stranger
}

async fn nobody_ran_a_strangers(connection: &mut PgConnection) {
    let row = sqlx::query("select is_called from public.hits").fetch_one(connection).await.unwrap();
    assert!(!row.get::<bool, _>(0), "something of the stranger's ran");
}

async fn drop_stranger(connection: &mut PgConnection, stranger: &str) {
    let drop = format!("drop owned by {stranger} cascade; drop role {stranger}");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(connection).await.unwrap();
}

#[tokio::test]
async fn nothing_of_a_strangers_runs_with_our_rights_and_handlers_find_their_own() {
    let redis = Redis::start().await.unwrap();
    let mut world = World::new().await;
    run(&mut world.sql, APPLICATION).await;
    let stranger = plant(&mut world.sql).await;
    run(
        &mut world.sql,
        "do $$ begin execute pg_catalog.format('alter database %I set search_path = app, public', pg_catalog.current_database()::text); end $$",
    )
    .await;
    world.with_redis(&redis.url(), "precheck = \"verify\"");
    world.configure("[relay]\npoll = \"20ms\"\n[audit]\nduplicates = true\n[events]\nretry = { delays = [\"50ms\"], max_attempts = 2 }");
    world.consumer("one", "handler = { function = \"app.one\" }\nreplies = true");
    world.consumer("many", "handler = { function = \"app.many\", batch = true }");
    world.consumer("silent", "handler = { function = \"app.silent\" }");
    world.apply_topology().await;
    let (worker, relay) = (world.start("worker"), world.start("relay"));
    let mut expected = 0;
    for consumer in ["one", "many", "silent"] {
        let queue = world.queue(consumer);
        // One by one, each alone in its transaction; a large batch; with bad ones among them; and all once more.
        for key in ["a", "b", "c"] {
            world.publish(consumer, message("acme", key).with_reply_to("nobody".into()), "{}").await;
            expected += 1;
            world.wait_for("select count(*) from app.done", expected).await;
        }
        let batch = |letter: &str| {
            let keys = (0..150).map(|number| format!("{letter}{number}"));
            keys.map(|key| (queue.clone(), message("acme", &key), b"{}".to_vec())).collect::<Vec<_>>()
        };
        world.broker.publish_all("", batch("k")).await.unwrap();
        let mut mixed = batch("m");
        for bad in ["reject", "fail"] {
            mixed.push((queue.clone(), message("acme", bad), b"not JSON".to_vec()));
        }
        world.broker.publish_all("", mixed).await.unwrap();
        expected += 300;
        world.wait_for("select count(*) from app.done", expected).await;
        world.broker.publish_all("", batch("k")).await.unwrap();
    }
    let letters = "select count(*) from oncely.dead_letters where state = 'waiting'";
    world.wait_for(letters, 6).await;
    world.wait_for("select count(*) from oncely.audit where outcome = 'duplicate'", 450).await;
    world.wait_for("select count(*) from oncely.mirror_queue", 0).await;
    world.wait_for("select count(*) from app.notes", expected).await;
    let told = world.queue("told");
    world.broker.declare_queue(&told, lapin::types::FieldTable::default()).await.unwrap();
    let pending = "select count(*) from oncely.events where state = 'pending'";
    wait_beside_good_events(&mut world, &told, pending, 0).await;
    let keys = world.file().with_file_name("keys.csv");
    std::fs::write(&keys, "tenant,key\nacme,seeded\n").unwrap();
    let seed = format!("keys seed {} --consumer one", keys.display());
    let verbs = [
        ("check", vec![0, 1]),
        // A superuser.
        ("doctor", vec![1]),
        ("status", vec![0, 1, 3]),
        ("status --json", vec![0, 1, 3]),
        ("top --once", vec![0]),
        ("audit list --since 1h --limit 5", vec![0]),
        ("explain k1 --tenant acme", vec![0]),
        ("consumers list", vec![0]),
        ("keys list --consumer one --status completed", vec![0]),
        ("keys show k1 --consumer one", vec![0]),
        (&seed, vec![0]),
        ("leases list", vec![1]),
        ("leases release k1 --yes", vec![1]),
        ("adopt report --consumer one", vec![1]),
        ("consumers pause one --reason why --for 1h", vec![0]),
        ("failed groups", vec![0]),
        ("failed list", vec![0]),
        ("failed requeue --reason handler_rejected --yes", vec![0]),
        ("failed discard --reason attempts_exhausted --yes", vec![0]),
        ("failed sweep", vec![0]),
        ("outbox list", vec![0]),
        ("outbox discard --all --yes", vec![0]),
        ("gc run", vec![0]),
        ("migrate info", vec![0]),
        ("topology apply", vec![0]),
        ("retention list", vec![0]),
        ("secrets list", vec![0]),
        ("secrets rotate letter", vec![0]),
        ("mirror stats", vec![0]),
        ("mirror verify", vec![0, 1]),
        ("mirror rebuild", vec![0]),
        ("config show", vec![0]),
        ("grant --list", vec![1]),
        ("tenant export acme", vec![0]),
        ("tenant limit acme --letters 10 --retention 90d", vec![0]),
        ("tenant usage", vec![0]),
        ("processes forget", vec![1]),
        ("handler test examples/testing/payments.jsonl --consumer one", vec![1]),
        ("handler test examples/testing/payments.jsonl --consumer many", vec![1]),
    ];
    assert_eq!(
        untried(verbs.iter().filter_map(|(verb, _)| verb.split(' ').next())),
        ["worker", "relay", "console", "gateway", "publish", "completions", "man", "help"],
        "a verb that looks something up goes into the list above"
    );
    for (verb, codes) in verbs {
        let arguments: Vec<&str> = verb.split(' ').collect();
        let output = world.oncely_with(&arguments, &[("REDIS_URL", &redis.url())]).await;
        let code = output.status.code().unwrap_or(-1);
        assert!(codes.contains(&code), "{verb}: {code}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let (running, operator) = console(&world).await;
    crawl(&operator, &["/"], 400).await;
    drop(running);
    every_statement(&world).await;
    world.stop(worker).await;
    world.stop(relay).await;
    // A client of the SQL protocol, with the search_path of its database.
    let mut client = PgConnection::connect(world.database.url()).await.unwrap();
    run(
        &mut client,
        "begin; select oncely.claim('acme', 'sql', 'k', null); select oncely.complete('acme', 'sql', 'k', '{}'); commit;
         begin; select oncely.claim('acme', 'sql', 'k', null); commit;
         select oncely.fail('acme', 'sql', 'f', null, 1, 'boom', error_code => '22012');
         select oncely.emit('', 'nobody', '{}'::pg_catalog.jsonb, '{\"a\": 1}'::pg_catalog.jsonb, ordering_key => 'o', type => 't', source => 's')",
    )
    .await;
    let erase = ["tenant", "erase", "acme", "--forget-keys", "--yes"];
    let output = world.oncely_with(&erase, &[("REDIS_URL", &redis.url())]).await;
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.count("select count(*) from oncely.idempotency_keys where tenant = 'acme'").await, 0);
    nobody_ran_a_strangers(&mut world.sql).await;
    drop_stranger(&mut world.sql, &stranger).await;
}

#[tokio::test]
async fn migrations_run_nothing_of_a_strangers() {
    let database = Database::create(&servers().await.urls().postgres).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    let stranger = plant(&mut connection).await;
    let mut command = tokio::process::Command::new(program("oncely"));
    command.arg("migrate").env("DATABASE_URL", database.url()).env("ONCELY_CONFIG", "/dev/null");
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    nobody_ran_a_strangers(&mut connection).await;
    drop_stranger(&mut connection, &stranger).await;
    drop(connection);
    database.drop_now().await.unwrap();
}
