//! The reference of the command line: the programs' own help, verb by verb.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::head;

pub(super) fn page(programs: &Path) -> anyhow::Result<String> {
    let mut page = head("Command line", "the programs' --help");
    page.push_str(
        "Data goes to stdout, everything else to stderr. `--output` says in which form rows are printed, `--json` prints one object with its \
         schema's name and version:\n[what `oncely` prints for programs](output.md). Exit codes are the same for all programs: \
         [errors](errors.md#exit-codes).\n\n",
    );
    for name in ["oncely", "worker", "relay"] {
        describe(&mut page, programs, &[name.to_owned()])?;
    }
    Ok(page.trim_end().to_owned() + "\n")
}

/// One verb with its help, then its verbs.
fn describe(page: &mut String, programs: &Path, words: &[String]) -> anyhow::Result<()> {
    let help = help(programs, words)?;
    let level = if words.len() == 1 { "##" } else { "###" };
    page.push_str(&format!("{level} `{}`\n\n```text\n{}\n```\n\n", words.join(" "), help.trim_end()));
    for verb in verbs(&help) {
        describe(page, programs, &[words, &[verb]].concat())?;
    }
    Ok(())
}

fn help(programs: &Path, words: &[String]) -> anyhow::Result<String> {
    let (program, verbs) = words.split_first().context("no program")?;
    // Help shows what variables of the environment are set to: here none is.
    let output = Command::new(programs.join(program))
        .args(verbs)
        .arg("--help")
        .env_clear()
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    anyhow::ensure!(output.status.success(), "{} --help: {}", words.join(" "), output.status);
    let text = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

/// The names below "Commands:".
fn verbs(help: &str) -> Vec<String> {
    let listed =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    listed
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|verb| !verb.is_empty() && *verb != "help")
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_and_their_continued_lines_are_not() {
        let help =
            "Does it\n\nUsage: it\n\nCommands:\n  run   Runs\n         on\n  help  Print\n\nOptions:\n  -h\n";
        assert_eq!(verbs(help), ["run"]);
    }
}
