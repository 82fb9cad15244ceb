//! `cargo xtask image`: the Dockerfile's last stage, done step by step in a bare Debian, and a message processed in what comes out.
//!
//! Kept to of a container: the image's files, user, environment and command, a read-only root, no capability. The stage that compiles is
//! left out: the programs are those that the tests have.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use testbed::{BareRoot, Database, Process, Servers, Service};

use super::trial::{grant, publish, wait_until_processed};
use crate::process;

/// How long a program may take to end.
const LIMIT: Duration = Duration::from_secs(60);

/// Fails where a step does; says how long it took.
pub(crate) async fn run() -> anyhow::Result<()> {
    let programs = process::build_binaries()?;
    let (servers, root) = tokio::try_join!(Servers::start_private(), async {
        tokio::task::spawn_blocking(BareRoot::copy).await?
    })?;
    let began = Instant::now();
    let told = |what: &str| eprintln!("{:6.1} s  {what}", began.elapsed().as_secs_f64());
    let text =
        std::fs::read_to_string(process::root().join("Dockerfile")).context("cannot read Dockerfile")?;
    let image = Image::assemble(&text, root, &programs)?;
    told("the image is assembled");
    // As a volume that an administrator mounts.
    let tour = process::root().join("examples/tour/oncely.toml");
    std::fs::copy(tour, image.root.outside(Path::new("/etc/oncely/oncely.toml")))?;
    let database = Database::create(&servers.urls().postgres).await?;
    for verb in [["oncely", "migrate"].as_slice(), &["oncely", "topology", "apply"]] {
        let mut process = image.start(verb, &servers, &database, "postgres")?;
        let ended = process.wait_for_end(LIMIT).await?;
        anyhow::ensure!(ended.success(), "{}: {ended}\n{}", verb.join(" "), process.output());
    }
    told("migrated, queues declared");
    grant(&database).await?;
    let command: Vec<&str> = image.command.iter().map(String::as_str).collect();
    let mut worker = image.start(&command, &servers, &database, "trial_worker")?;
    let mut relay = image.start(&["relay"], &servers, &database, "trial_relay")?;
    publish(&servers).await?;
    wait_until_processed(&database, "select 1 from app.payments where tenant = 'acme' and order_id = '1182'")
        .await?;
    wait_until_processed(&database, "select 1 where not exists (select from oncely.mirror_queue)").await?;
    told("a message has taken effect, and its key is in the mirror");
    for (name, process) in [("worker", &mut worker), ("relay", &mut relay)] {
        let ended = process.terminate(LIMIT).await?;
        anyhow::ensure!(ended.success(), "{name}: {ended}\n{}", process.output());
    }
    told("worker and relay have ended as they were told");
    Ok(())
}

/// What a container engine would start.
struct Image {
    root: BareRoot,
    environment: Vec<(String, String)>,
    user: u32,
    command: Vec<String>,
}

impl Image {
    /// Follows the last stage of a Dockerfile. An instruction that is not known here is refused: the image would be another one.
    fn assemble(text: &str, root: BareRoot, programs: &Path) -> anyhow::Result<Self> {
        let mut image = Self { root, environment: Vec::new(), user: 0, command: Vec::new() };
        let text = text.replace("\\\n", " ");
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).map(str::trim).collect();
        let from = lines.iter().rposition(|line| line.starts_with("FROM ")).context("there is no FROM")?;
        let base = format!("FROM debian:{}-slim", BareRoot::RELEASE);
        anyhow::ensure!(lines[from] == base, "the last stage must begin with {base}");
        for line in lines[from + 1..].iter().filter(|line| !line.is_empty()) {
            image.follow(line, programs).with_context(|| format!("Dockerfile: {line}"))?;
        }
        Ok(image)
    }

    fn follow(&mut self, line: &str, programs: &Path) -> anyhow::Result<()> {
        let (instruction, rest) = line.split_once(' ').context("it says nothing")?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (instruction, words.as_slice()) {
            ("RUN", _) => self.root.run(&["sh", "-c", rest]),
            ("COPY", ["--from=build", sources @ .., to]) => {
                let name = |source: &&str| Path::new(source).file_name().map(|name| programs.join(name));
                let found: Option<Vec<PathBuf>> = sources.iter().map(name).collect();
                self.copy(&found.context("a source is no file")?, to)
            }
            ("COPY", [sources @ .., to]) => {
                let found: Vec<PathBuf> = sources.iter().map(|source| process::root().join(source)).collect();
                self.copy(&found, to)
            }
            ("ENV", [setting]) => {
                let (name, value) = setting.split_once('=').context("it has no value")?;
                self.environment.push((name.to_owned(), value.to_owned()));
                Ok(())
            }
            ("USER", [user]) => {
                let (user, group) = user.split_once(':').context("it names no group")?;
                anyhow::ensure!(user == group, "user and group differ");
                self.user = user.parse()?;
                Ok(())
            }
            ("STOPSIGNAL", ["SIGTERM"]) => Ok(()),
            ("CMD", _) => {
                self.command = serde_json::from_str(rest)?;
                Ok(())
            }
            _ => anyhow::bail!("this instruction is not known here"),
        }
    }

    /// Into a folder where `to` ends with a slash.
    fn copy(&self, sources: &[PathBuf], to: &str) -> anyhow::Result<()> {
        let target = self.root.outside(Path::new(to));
        for source in sources {
            let file = match to.ends_with('/') {
                true => target.join(source.file_name().context("a source is no file")?),
                false => target.clone(),
            };
            std::fs::create_dir_all(file.parent().context("a target is no file")?)?;
            std::fs::copy(source, &file).with_context(|| format!("cannot copy {}", source.display()))?;
        }
        Ok(())
    }

    /// Starts a command as this login of the database.
    fn start(
        &self,
        command: &[&str],
        servers: &Servers,
        database: &Database,
        login: &str,
    ) -> anyhow::Result<Process> {
        anyhow::ensure!(self.user != 0, "the image runs as root");
        let (_, server) = database.url().split_once('@').context("the URL names no user")?;
        let urls = servers.urls();
        let mut environment = self.environment.clone();
        for (name, value) in [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("DATABASE_URL", &format!("postgres://{login}@{server}")),
            ("AMQP_URL", &urls.rabbitmq),
            ("REDIS_URL", &urls.redis),
        ] {
            environment.push((name.to_owned(), value.to_owned()));
        }
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let log = self.root.path().with_file_name(format!("{}-{login}.log", command.join("-")));
        self.root.start(&Service { command, environment, user: self.user }, &log)
    }
}
