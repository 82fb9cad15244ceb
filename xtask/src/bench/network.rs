//! `--network`: the programs have a network namespace of their own, and reach the servers over a link with a delay.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;
use testbed::{Forward, Namespace, Process, Scratch, Servers, Urls, forward_with_delay};

/// Parses a round trip's time, such as `0.3ms`.
pub(crate) fn parse_round_trip(text: &str) -> Result<Duration, String> {
    let millis = text.strip_suffix("ms").unwrap_or(text).parse::<f64>();
    match millis {
        Ok(millis) if (0.0..=1_000.0).contains(&millis) => Ok(Duration::from_secs_f64(millis / 1e3)),
        _ => Err("a round trip is 0ms to 1000ms, such as 0.3ms".to_owned()),
    }
}

/// A namespace for programs, and the process that forwards their connections.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) namespace: Namespace,
    link: Process,
    /// The servers as the programs reach them.
    pub(crate) urls: Urls,
}

impl Network {
    /// Creates the namespace and the link to these servers; `round_trip` is the delay of both directions together.
    pub(crate) async fn create(
        servers: &Servers,
        round_trip: Duration,
        scratch: &Scratch,
    ) -> anyhow::Result<Self> {
        let namespace = Namespace::create(scratch.path()).await?;
        let (urls, forwards) = servers.behind(namespace.host())?;
        let delay = (round_trip / 2).as_micros().to_string();
        let forwards: Vec<String> = forwards.iter().map(Forward::to_string).collect();
        let mut arguments = vec!["forward", "--delay", &delay];
        arguments.extend(forwards.iter().map(String::as_str));
        let log = scratch.path().join("link.log");
        let link = Process::start(&std::env::current_exe()?, &arguments, &[], &log)?;
        Ok(Self { namespace, link, urls })
    }

    /// Returns the id of the process that forwards.
    pub(crate) fn pid(&self) -> u32 {
        self.link.id()
    }
}

/// Medians of a round trip to Redis and back (`PING`), in milliseconds: what the link adds to its delay is in them.
#[derive(Clone, Debug)]
pub(crate) struct RoundTrips {
    pub(crate) loopback: f64,
    /// Over a link without a delay: the cost of namespace and forwarding.
    pub(crate) no_delay: f64,
    pub(crate) delayed: f64,
    /// Statements with parameters of several sizes over the delayed link, as `bench statement` prints them.
    pub(crate) statements: Value,
}

impl std::fmt::Display for RoundTrips {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "round trip (PING to Redis): {:.3} ms on loopback, {:.3} ms over the link without a delay, {:.3} ms with it; statements: {}",
            self.loopback, self.no_delay, self.delayed, self.statements
        )
    }
}

/// Arguments of the process that forwards.
#[derive(Debug, Args)]
pub(crate) struct ForwardArguments {
    /// Microseconds from one end to the other
    #[arg(long, value_name = "MICROSECONDS")]
    delay: u64,
    #[arg(required = true, value_name = "LISTEN=SERVER")]
    forwards: Vec<Forward>,
}

/// Forwards until it is killed.
pub(crate) fn forward(arguments: &ForwardArguments) -> anyhow::Result<()> {
    forward_with_delay(&arguments.forwards, Duration::from_micros(arguments.delay))
        .context("the link has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_may_have_a_unit() {
        assert_eq!(parse_round_trip("0.3"), parse_round_trip("0.3ms"));
        assert_eq!(parse_round_trip("1ms"), Ok(Duration::from_millis(1)));
        for wrong in ["", "ms", "-1", "2s", "1001", "NaN"] {
            assert!(parse_round_trip(wrong).is_err(), "{wrong}");
        }
    }
}
