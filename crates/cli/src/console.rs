//! `oncely console`: serves the web console.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tempfile::TempDir;

use super::{operator, output};
use oncely_config::Config;
use oncely_console::{Console, Options};
use oncely_process::shutdown;
use oncely_process::telemetry;

#[derive(Debug, Args)]
#[command(
    after_help = "Prints the URL and serves until Ctrl-C. On a loopback address the URL is a link that signs in \
                  once, as an operator; for other addresses see `[console]` in the configuration. The PostgreSQL \
                  role of the login limits the actions: oncely_auditor may only read."
)]
pub(super) struct ConsoleArguments {
    /// Listen on this address instead of console.listen
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Also open the URL in the browser
    #[arg(long)]
    open: bool,
    /// Accept connections of other machines without TLS: only behind a TLS proxy with a private network between
    #[arg(long)]
    insecure_plaintext: bool,
}

pub(super) async fn run(file: &Path, arguments: ConsoleArguments) -> crate::VerbResult {
    let config = Config::load_read_only(file)?;
    telemetry::init(&config.log);
    let stop = shutdown::on_signal()?;
    let options = Options {
        listen: arguments.listen,
        insecure_plaintext: arguments.insecure_plaintext,
        user: operator::name(),
        announce: Box::new(|link| {
            if output::print(link).is_err() {
                tracing::warn!("stdout is closed: sign-in links cannot be printed");
            }
        }),
    };
    let console = Console::open(config, options).await?;
    output::print(&console.address)?;
    let page = if arguments.open { open_browser(&console.address) } else { None };
    let deletion = async move {
        // Long enough for a browser to start.
        tokio::time::sleep(LINK_PAGE_LIFETIME).await;
        drop(page);
    };
    let deletion_task = tokio::spawn(deletion);
    console.run(stop).await;
    deletion_task.abort();
    Ok(ExitCode::SUCCESS)
}

/// Lifetime of the page that leads to the console.
const LINK_PAGE_LIFETIME: Duration = Duration::from_secs(60);

/// Opens a URL on the desktop, by a page in a folder of this user only: every user of the machine can read the arguments of a process. The
/// page exists until the returned value is dropped. `None` if the page can't be written or opened, of which a note is printed.
fn open_browser(address: &str) -> Option<TempDir> {
    let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    match write_page(address) {
        Err(error) => output::print_note(&format!(
            "no page could be written for the browser ({error}): open the URL yourself"
        )),
        Ok((folder, file)) => {
            let null = std::process::Stdio::null;
            let child = std::process::Command::new(opener)
                .arg(file)
                .stdin(null())
                .stdout(null())
                .stderr(null())
                .spawn();
            if child.is_ok() {
                return Some(folder);
            }
            output::print_note(&format!("{opener} is not there: open the URL yourself"));
        }
    }
    None
}

/// Writes a page that leads to a URL, readable by this user only, into a folder that is deleted when the returned `TempDir` is dropped.
fn write_page(address: &str) -> std::io::Result<(TempDir, PathBuf)> {
    let create_folder = |folder: &Path| tempfile::Builder::new().prefix("oncely-console-").tempdir_in(folder);
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = match own.map(|folder| create_folder(&folder)) {
        Some(Ok(folder)) => folder,
        _ => create_folder(&std::env::temp_dir())?,
    };
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700))?;
    let path = folder.path().join("open.html");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    // The console's own URL: none of its characters needs escaping in HTML.
    write!(
        file,
        "<!DOCTYPE html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\"><title>oncely</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={address}\"><a href=\"{address}\">oncely console</a>"
    )?;
    Ok((folder, path))
}
