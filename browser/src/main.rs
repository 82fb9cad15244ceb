//! The console in a real browser, driven like somebody drives it. `cargo xtask browser` builds and runs it.

mod browser;
mod checks;
mod ground;
mod look;
mod pictures;
mod places;
mod seed;
mod site;
mod tab;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::browser::Chromium;
use crate::checks::Check;
use crate::ground::Ground;
use crate::site::Site;

/// What one check may take.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug, Parser)]
struct Arguments {
    /// The folder with worker, relay and oncely
    #[arg(long)]
    programs: PathBuf,
    /// axe-core's file
    #[arg(long)]
    axe: PathBuf,
    /// Only checks whose sentence holds this
    #[arg(long)]
    only: Option<String>,
    /// Save the book's pictures in this folder
    #[arg(long)]
    screenshots: Option<PathBuf>,
    /// Save a picture of every page in every look in this folder
    #[arg(long)]
    gallery: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> anyhow::Result<bool> {
    let site = Site::open(&arguments.programs).await?;
    seed::sow(&site).await?;
    let ground = Ground { site, chromium: Chromium::launch().await?, axe: arguments.axe };
    let (mut passed, mut failed) = (0, 0);
    for check in checks::all() {
        // Nobody gets any further without the first ones.
        let is_wanted = arguments.only.as_ref().is_none_or(|only| check.sentence.contains(only.as_str()));
        if !is_wanted && !check.is_needed {
            continue;
        }
        if one(&check, &ground).await { passed += 1 } else { failed += 1 }
    }
    if arguments.screenshots.is_some() || arguments.gallery.is_some() {
        pictures::prepare(&ground).await?;
    }
    if let Some(folder) = &arguments.screenshots {
        pictures::book(&ground, folder).await?;
    }
    if let Some(folder) = &arguments.gallery {
        pictures::gallery(&ground, folder).await?;
    }
    ground.chromium.close().await?;
    println!("{passed} passed, {failed} failed");
    Ok(failed == 0)
}

async fn one(check: &Check, ground: &Ground) -> bool {
    let start = Instant::now();
    let done = match tokio::time::timeout(LIMIT, (check.run)(ground)).await {
        Ok(done) => done,
        Err(_) => Err(anyhow::anyhow!("not done within {LIMIT:?}")),
    };
    let took = start.elapsed().as_secs_f64();
    match &done {
        Ok(()) => println!("ok      {} ({took:.1} s)", check.sentence),
        Err(error) => println!("FAILED  {} ({took:.1} s): {error:#}", check.sentence),
    }
    done.is_ok()
}
