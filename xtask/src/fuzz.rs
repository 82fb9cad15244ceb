//! `cargo xtask fuzz`: libFuzzer on what a message's bytes go through, from the corpus of bad messages on.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use testbed::{Corpus, Posting};

use crate::process;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// How long each target runs
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Longest input.
const LONGEST: usize = 4_096;

/// What cargo-fuzz passes, without a sanitizer: the product has no unsafe code, and is several times faster without. Known to
/// the stable compiler.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing";

/// Builds the targets and runs one after the other; fails where one finds something.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let root = process::root();
    let folder = root.join("fuzz");
    // What is published is the same for each version.
    let seeds = Corpus::load(&root.join("tests/data/bad_messages.toml"), "3.10")?;
    let target = host()?;
    let built = process::cargo(&folder)
        .args(["build", "--release", "--locked", "--target", &target])
        // Only for the target's sake: build scripts and macros are compiled without.
        .env("RUSTFLAGS", COVERAGE)
        .status()?;
    anyhow::ensure!(built.success(), "the targets can't be built; libFuzzer takes a C++ compiler");
    for (name, seed) in [("messages", message as fn(&Posting) -> Vec<u8>), ("frames", frame)] {
        let corpus = folder.join("corpus").join(name);
        sow(&corpus, &seeds, seed)?;
        let artifacts = folder.join("artifacts").join(name);
        std::fs::create_dir_all(&artifacts)?;
        let status =
            std::process::Command::new(folder.join("target").join(&target).join("release").join(name))
                .arg(&corpus)
                .arg(format!("-max_total_time={}", arguments.seconds))
                .arg(format!("-max_len={LONGEST}"))
                .arg(format!("-artifact_prefix={}/", artifacts.display()))
                // An input that takes a second is a bug too, and so is one that takes much memory.
                .args(["-timeout=1", "-rss_limit_mb=1024", "-malloc_limit_mb=64", "-print_final_stats=1"])
                .status()?;
        anyhow::ensure!(status.success(), "{name} found something; see fuzz/artifacts/{name}");
    }
    Ok(())
}

fn host() -> anyhow::Result<String> {
    let output = std::process::Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?.to_owned())
}

fn sow(folder: &Path, seeds: &Corpus, seed: fn(&Posting) -> Vec<u8>) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (number, case) in seeds.cases.iter().enumerate() {
        let bytes = seed(&case.message);
        if bytes.len() <= LONGEST {
            std::fs::write(folder.join(format!("case-{number:03}")), bytes)?;
        }
    }
    Ok(())
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()[..], bytes].concat()
}

/// As `oncely::fuzzing::encode` says.
fn message(posting: &Posting) -> Vec<u8> {
    [long(&posting.wire), long(&posting.routing_key), posting.body.clone()].concat()
}

/// A header frame.
fn frame(posting: &Posting) -> Vec<u8> {
    let size = (posting.body.len() as u64).to_be_bytes();
    let payload = [&[0, 60, 0, 0][..], &size, &posting.wire].concat();
    [&[2, 0, 1][..], &long(&payload), &[0xce]].concat()
}
