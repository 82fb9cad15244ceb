//! The page on `oncely doctor`, from the list of checks that the program itself prints.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;
use serde_json::Value;

use super::head;

const INTRODUCTION: &str = "\
`oncely doctor` looks at everything that can be wrong around Oncely, and says what to do. It changes nothing: its session in PostgreSQL is \
read-only,\nqueues are looked at and declared as they are, and the few empty messages that it publishes find no queue and come back.

```sh
oncely doctor                     # what is wrong, the worst first, with the fix
oncely doctor -v                  # what each check has read, too
oncely doctor --only pg,mq.dlq    # some checks, or all of a kind
oncely doctor --json              # for programs: schema oncely.doctor/1
```

| sign | verdict | it means |
| --- | --- | --- |
| `✓` | ok | looked at, and as it must be |
| `i` | info | worth knowing |
| `–` | skipped | not, or not wholly looked at, and why: no right, no answer, no HTTP API. Never taken for fine |
| `!` | warning | works, and may not go on so |
| `✗` | error | messages can't be taken, may be lost, or may take effect twice |

Exit codes: 0 where there is nothing worse than info (skipped is no worse), 1 for warnings, 5 for errors, 3 where a server does not \
answer. Each answer is\nwaited for up to two seconds; the checks of one server run one after the other, the servers beside each other.

What a check may read is what the login may read: with the login of a worker the doctor sees what a worker sees. `oncely_operator` and \
`oncely_auditor`\nsee most; `pg_read_all_stats` beside it shows other users' transactions. What AMQP does not show (policies, bindings, \
limits) is read from RabbitMQ's\nHTTP API where [`rabbitmq.management`](../reference/configuration.md) names it.

`oncely check` is the part of it that a worker or a relay needs before it starts (marked *start* below), with exit codes for a deployment \
script: 0, 78, 3.

## For a bug report

```sh
oncely doctor --bundle oncely-report.tar.gz
```

writes an archive of JSON files for a reader who does not know your system: what the doctor found, the settings, versions, migrations, heartbeats, \
the\ncounters of the last two hours, and how many dead letters of which reason wait. A text that is masked is `(masked)`, a name that is hashed \
is `#` and\neight hexadecimal digits: equal names are equal within one archive, and names can't be found by trying. Look at the archive before you send it.

| of | in the archive |
| --- | --- |
| `cell.known_keys` `cell.signing_key` `console.key` `console.url` `consumers.lock_order` `consumers.queue_arguments` `gateway.listen_tls` `gateway.tenant` `gateway.tls` `mirror.key` `postgres.tls` `postgres.url` `rabbitmq.management` \
`rabbitmq.tls` `rabbitmq.url` `redis.sentinels` `redis.tls` `redis.url` `traces.headers` `traces.tls` `worker.name` | masked |
| `tenant`, `key` of a consumer | the place that they are taken from; `fixed` is masked, wherever it stands |
| queues of a consumer whose tenant or key is the queue's name | masked in the settings, hashed elsewhere |
| `bindings` of a consumer whose tenant or key is the queue's name or a part of the routing key | masked in the settings, hashed elsewhere |
| `console.proxy` | header and networks; operators and secret are masked |
| a key that is no setting | its name; its value is masked |
| all other settings, names of consumers, queues, exchanges and SQL functions among them | as they are, a URL without its login |
| processes and their hosts, logins in the heartbeats | hashed |
| a pause | since when, until when, and by which login; the reason that a person gave is masked |
| dead letters | consumer, reason code, SQLSTATE, counts, times; no tenant, key or detail |
| the database | names of its users, of other sessions' applications and of replication slots |

So a customer's name is in the archive where a consumer, a queue or a function is named after one, and no setting says that it is a tenant.

";

/// Headings of the kinds, in the order of the list.
const KINDS: [(&str, &str); 10] = [
    ("config", "Configuration"),
    ("pg", "PostgreSQL"),
    ("trail", "The trail"),
    ("retention", "Memory"),
    ("fingerprint", ""),
    ("horizon", ""),
    ("time", "Clocks"),
    ("mq", "RabbitMQ"),
    ("redis", "Redis"),
    ("live", "Processes and consumers"),
];

pub(super) fn page(programs: &Path) -> anyhow::Result<String> {
    let output = Command::new(programs.join("oncely"))
        .args(["doctor", "--list", "--json"])
        .env_clear()
        .output()
        .context("cannot run oncely")?;
    anyhow::ensure!(output.status.success(), "oncely doctor --list: {}", output.status);
    let list: Value = serde_json::from_slice(&output.stdout)?;
    let checks = list["checks"].as_array().context("oncely doctor --list prints no checks")?;
    let mut page = head("Let the doctor look", "oncely doctor --list") + INTRODUCTION;
    let mut kind = "";
    for check in checks {
        let field = |name: &str| check[name].as_str().with_context(|| format!("{check} has no {name}"));
        let id = field("id")?;
        let of = id.split('.').next().unwrap_or(id);
        if of != kind {
            kind = of;
            let title = KINDS.iter().find(|(name, _)| *name == kind).map_or("Data", |(_, title)| *title);
            if !title.is_empty() {
                page.push_str(&format!("## {title}\n\n"));
            }
        }
        let start = if check["at_start"] == true { " *start*" } else { "" };
        page.push_str(&format!(
            "### {id}\n\n**{}.**{start}\n\n- reads: {}\n- bad: {}\n- fix: {}\n\n",
            field("title")?,
            field("reads")?,
            field("bad")?,
            field("fix")?
        ));
    }
    Ok(page.trim_end().to_owned() + "\n")
}
