//! `cargo xtask peers`: other people's queues and workflow engines beside us, each used as its documentation says, with the same job on
//! the same servers.

mod contender;
mod program;
mod standing;
mod supply;
mod trial;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::bench::stage::Stage;
use crate::servers::Choice;
use contender::CONTENDERS;
use program::Installation;
use standing::Standing;

#[derive(Debug, Args)]
#[command(after_help = help())]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Only these, such as oncely-batch,pg-boss
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// How long each is measured, from its first payment on
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Take worker, relay, oncely and bench from this folder, and build the programs that are not there
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// Print one JSON object a line for each
    #[arg(long)]
    json: bool,
}

fn help() -> String {
    let mut text = "The job: messages of 300 bytes come from a durable queue of RabbitMQ that is kept filled, every eleventh has come before, and each \
         different one must become one row of payments. All use the same servers, PostgreSQL durable as by default, and a database of their own. Figures \
         are per payment. WAL is PostgreSQL's; dead tuples and bytes are those that are left when all is done, and \
         Restate's own files count as bytes.\n\n"
        .to_owned();
    for contender in &CONTENDERS {
        text.push_str(&format!("  {:<16} {}\n", contender.name, contender.setup));
    }
    text
}

/// Measures one after the other. Fails where a result is wrong, when all have been measured.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    for name in &arguments.only {
        anyhow::ensure!(
            CONTENDERS.iter().any(|contender| contender.name == name),
            "there is no peer {name}; see cargo xtask peers --help"
        );
    }
    let window = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    let wanted: Vec<_> = CONTENDERS
        .iter()
        .filter(|contender| {
            arguments.only.is_empty() || arguments.only.iter().any(|name| name == contender.name)
        })
        .collect();
    arguments.servers.apply()?;
    let programs: Vec<_> = wanted.iter().filter_map(|contender| contender.system.program()).collect();
    let installation = Installation::make(&programs)?;
    let stage = Stage::set_plain(arguments.binaries.as_deref()).await?;
    let mut standings = Vec::new();
    for contender in wanted {
        eprintln!("{}: {}", contender.name, contender.setup);
        let standing = Standing::new(contender, trial::run(&stage, &installation, contender, window).await);
        if let Some(why) = standing.wrong() {
            eprintln!("{} FAILED: {why}", contender.name);
        }
        if arguments.json {
            standing.print_line()?;
        }
        standings.push(standing);
    }
    let table = standing::table(&standings);
    match arguments.json {
        true => eprintln!("{table}"),
        false => writeln!(std::io::stdout().lock(), "{table}")?,
    }
    let wrong: Vec<_> = standings.iter().filter(|s| s.wrong().is_some()).map(Standing::name).collect();
    anyhow::ensure!(wrong.is_empty(), "wrong results: {}", wrong.join(", "));
    Ok(())
}
