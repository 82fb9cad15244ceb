//! `bench`: the clients of `cargo xtask bench`. They are programs of their own because they must be release builds, and because
//! the CPU time of each is measured from outside.

mod claims;
mod consume;
mod emit;
mod handler;
mod hot;
mod leased;
mod naive;
mod order;
mod pace;
mod payment;
mod publish;
mod raw;
mod round_trip;
mod serve;
mod statement;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "bench", about = "Clients of cargo xtask bench")]
struct Arguments {
    #[command(subcommand)]
    client: Client,
}

#[derive(Debug, Subcommand)]
enum Client {
    /// Fill a queue: persistent messages, confirmed
    Publish(publish::Arguments),
    /// Publish at a fixed rate; each message says when it was sent
    Pace(pace::Arguments),
    /// The usual consumer: one transaction and one acknowledgement per message
    Naive(naive::Arguments),
    /// A consumer that does nothing but acknowledge
    Consume(consume::Arguments),
    /// Add events at a fixed rate, and receive them
    Emit(emit::Arguments),
    /// A worker with a handler in Rust that inserts one row per message
    Handler(handler::Arguments),
    /// A worker with a handler in Rust that runs under leases, and does nothing
    Leased(leased::Arguments),
    /// The rows that a worker writes, by bare batched inserts, without a broker
    Raw(raw::Arguments),
    /// Measure round trips to Redis and back
    RoundTrip(round_trip::Arguments),
    /// Measure statements with large parameters
    Statement(statement::Arguments),
    /// Claim keys in Redis and complete them, by our store or as the articles do
    Claims(claims::Arguments),
    /// A shop over HTTP, behind the HTTP door or with its own transaction
    Serve(serve::Arguments),
    /// Send orders over HTTP
    Order(order::Arguments),
}

/// What a client has measured, for whoever has started it.
fn tell(found: &serde_json::Value) -> anyhow::Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stdout(), "{found}")?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Arguments::parse().client {
        Client::Publish(arguments) => publish::run(&arguments).await,
        Client::Pace(arguments) => pace::run(&arguments).await,
        Client::Naive(arguments) => naive::run(&arguments).await,
        Client::Consume(arguments) => consume::run(&arguments).await,
        Client::Emit(arguments) => emit::run(&arguments).await,
        Client::Handler(arguments) => handler::run(&arguments).await,
        Client::Leased(arguments) => leased::run(&arguments).await,
        Client::Raw(arguments) => raw::run(&arguments).await,
        Client::RoundTrip(arguments) => round_trip::run(&arguments).await,
        Client::Statement(arguments) => statement::run(&arguments).await,
        Client::Claims(arguments) => claims::run(&arguments).await,
        Client::Serve(arguments) => serve::run(&arguments).await,
        Client::Order(arguments) => order::run(&arguments).await,
    }
}
