//! `cargo xtask …`: the project's tasks.

mod adopt;
mod bench;
mod browser;
mod cluster;
mod compose;
mod demo;
mod deny;
mod dist;
mod docs;
mod dynamodb;
mod faults;
mod fuzz;
mod judgement;
mod mutants;
mod noticed;
mod peers;
mod plot;
mod prepare;
mod process;
mod serve;
mod servers;
mod source_copy;
mod suite;
mod tool;
mod upgrade;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Oncely's tasks", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Show that each message takes effect once while processes are killed
    Demo(demo::Arguments),
    /// Measure against the usual way, on private servers with durable defaults
    Bench(bench::Arguments),
    /// Measure other people's queues and workflow engines beside us: the same job for minutes, on the same servers
    Peers(peers::Arguments),
    /// Forward connections with a delay, for `bench --network`
    #[command(hide = true)]
    Forward(bench::ForwardArguments),
    /// Random traffic and random faults on real processes, then an independent check
    Faults(faults::Arguments),
    /// A consumer in Python with a backlog is observed, taken over, given back and taken over again, while all are killed; then the count
    Adopt(adopt::Arguments),
    /// The programs of a commit under load while those of this checkout migrate and roll; then the same check
    Upgrade(upgrade::Arguments),
    /// Lose hosts under load, one after the other: nodes of RabbitMQ, PostgreSQL's primary, Redis's master; then the same check
    Cluster(cluster::Arguments),
    /// Plant bugs, and see that the judge of the fault runs finds each of them
    Mutants(mutants::Arguments),
    /// How soon trouble is told: by /readyz, status, top, the console, the doctor, an alert
    Noticed(noticed::Arguments),
    /// Draw the figures of docs/src/explanation/performance.md from what bench printed
    Plot(plot::Arguments),
    /// Write the generated references of the book, build the book, check its links
    Docs(docs::Arguments),
    /// Hold what others have written against deny.toml: licences, sources, bans, known weaknesses
    Deny,
    /// Make a release's tarball from the last commit, with checksums, SBOM and notices, in target/dist
    Dist(dist::Arguments),
    /// Assemble the Dockerfile's image without a container engine, from programs of the profile dev, and process a message in it (as root)
    Image,
    /// Try the lease store in DynamoDB against moto
    Dynamodb,
    /// Run the tests of a Citus cluster, on the one whose coordinator CITUS_URL names
    Citus,
    /// Write sqlx-data.json, the offline snapshot of all queries
    Prepare {
        /// Only compare; fail where it is stale
        #[arg(long)]
        check: bool,
    },
    /// Look at the console with a real browser
    Browser(browser::Arguments),
    /// Run the test suite on real servers
    Test {
        #[command(flatten)]
        servers: servers::Choice,
        /// Passed on to cargo nextest run: names of tests, filters
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the fuzz targets from the corpus of bad messages on
    Fuzz(fuzz::Arguments),
    /// Start private servers, print their URLs, and keep them until Ctrl-C
    Servers(servers::Choice),
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Demo(arguments) => demo::run(&arguments).await,
        Task::Bench(arguments) => bench::run(&arguments).await,
        Task::Peers(arguments) => peers::run(&arguments).await,
        Task::Forward(arguments) => bench::forward(&arguments),
        Task::Faults(arguments) => faults::run(&arguments).await,
        Task::Adopt(arguments) => adopt::run(&arguments).await,
        Task::Upgrade(arguments) => upgrade::run(&arguments).await,
        Task::Cluster(arguments) => cluster::run(&arguments).await,
        Task::Mutants(arguments) => mutants::run(&arguments).await,
        Task::Noticed(arguments) => noticed::run(&arguments).await,
        Task::Plot(arguments) => plot::run(&arguments),
        Task::Docs(arguments) => docs::run(&arguments).await,
        Task::Deny => deny::run(),
        Task::Dist(arguments) => dist::run(&arguments).await,
        Task::Image => dist::image::run().await,
        Task::Dynamodb => dynamodb::run(),
        Task::Citus => suite::run_citus().await,
        Task::Prepare { check } => prepare::run(check).await,
        Task::Browser(arguments) => browser::run(&arguments),
        Task::Test { servers, arguments } => suite::run(&servers, &arguments).await,
        Task::Fuzz(arguments) => fuzz::run(&arguments),
        Task::Servers(servers) => serve::run(&servers).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
