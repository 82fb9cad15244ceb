//! `oncely console`: everything in the browser.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

use super::{consent, output};
use crate::config::Config;
use crate::console::{Console, Options};
use crate::{shutdown, telemetry};

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the URL and goes on until Ctrl-C. On this machine's own address the URL is a link that lets whoever follows it \
                  in, once, as an operator; for others see `[console]` in the configuration. What may be done is what the PostgreSQL role \
                  of the login allows: with oncely_auditor one may look."
)]
pub(super) struct Arguments {
    /// Listen here instead of console.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Open the URL in the browser, too
    #[arg(long)]
    open: bool,
    /// Let other machines come near without TLS: where a proxy has it, and the last part of the way is yours alone
    #[arg(long)]
    insecure_plaintext: bool,
}

pub(super) async fn run(file: &Path, arguments: Arguments) -> anyhow::Result<ExitCode> {
    let config = Config::load(file)?;
    telemetry::start(&config.log);
    let stop = shutdown::on_signal()?;
    let options = Options {
        listen: arguments.listen,
        insecure_plaintext: arguments.insecure_plaintext,
        user: consent::user(),
        announce: Box::new(|link| {
            if output::print(link).is_err() {
                tracing::warn!("stdout is closed: nobody sees the links that are printed there");
            }
        }),
    };
    let console = Console::open(config, options).await?;
    output::print(&console.address)?;
    if arguments.open {
        browse(&console.address);
    }
    console.run(stop).await;
    Ok(ExitCode::SUCCESS)
}

/// Has the desktop open a URL.
fn browse(address: &str) {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let null = std::process::Stdio::null;
    let opened =
        std::process::Command::new(opener).arg(address).stdin(null()).stdout(null()).stderr(null()).spawn();
    if opened.is_err() {
        output::note(&format!("{opener} is not there: open the URL yourself"));
    }
}
