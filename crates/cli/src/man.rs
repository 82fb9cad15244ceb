//! `oncely man`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use super::{examples, output};

#[derive(Debug, Args)]
#[command(after_help = "Needs neither a server nor a configuration.")]
pub(super) struct ManArguments {
    /// Write a page for each verb to this folder, instead of the program's own to stdout
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn run(arguments: ManArguments) -> crate::VerbResult {
    let command = examples::add_for_man(super::Arguments::command());
    match arguments.dir {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            output::print_script(&String::from_utf8(page)?)?;
        }
        Some(folder) => {
            std::fs::create_dir_all(&folder)
                .and_then(|()| clap_mangen::generate_to(command, &folder))
                .with_context(|| format!("cannot write into {}", folder.display()))?;
            output::print_note(&format!("wrote man pages into {}", folder.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}
