//! Who could say that something is wrong: each is asked as a person or a program asks it, and answers in sentences.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tokio::process::Command;

use super::console::Console;
use super::http::get;
use super::shop::Shop;

/// Who does not answer `/readyz` within this time does not answer: a second is Kubernetes's default, too.
const READYZ: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Observer {
    Readyz,
    Status,
    Top,
    Console,
    Doctor,
    Alert,
}

impl Observer {
    pub(super) const ALL: [Self; 6] =
        [Self::Readyz, Self::Status, Self::Top, Self::Console, Self::Doctor, Self::Alert];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Readyz => "/readyz",
            Self::Status => "status",
            Self::Top => "top",
            Self::Console => "console",
            Self::Doctor => "doctor",
            Self::Alert => "alert",
        }
    }
}

/// Asks them.
pub(super) struct Observers {
    listen: [String; 2],
    oncely: std::path::PathBuf,
    environment: Vec<(&'static str, String)>,
    console: Console,
    prometheus: String,
}

impl Observers {
    pub(super) async fn of(shop: &Shop) -> anyhow::Result<Self> {
        Ok(Self {
            listen: shop.listen.clone(),
            oncely: shop.programs.join("oncely"),
            environment: shop.environment.clone(),
            console: Console::enter(&shop.link).await?,
            prometheus: shop.prometheus.address(),
        })
    }

    /// What one of them says now, in sentences.
    pub(super) async fn ask(&self, observer: Observer) -> anyhow::Result<Vec<String>> {
        match observer {
            Observer::Readyz => Ok(self.readyz().await),
            Observer::Status => self.status().await,
            Observer::Top => {
                let (_, frame) = self.oncely(&["top", "--once"]).await?;
                Ok(joined(&frame))
            }
            Observer::Console => self.console.overview().await,
            Observer::Doctor => self.doctor().await,
            Observer::Alert => self.alerts().await,
        }
    }

    async fn readyz(&self) -> Vec<String> {
        let mut said = Vec::new();
        for (who, address) in ["worker", "relay"].iter().zip(&self.listen) {
            said.push(match get(&format!("http://{address}/readyz"), None, READYZ).await {
                Ok(answer) => format!("{who} {}: {}", answer.status, answer.body.trim()),
                Err(_) => format!("{who}: no answer"),
            });
        }
        said
    }

    async fn status(&self) -> anyhow::Result<Vec<String>> {
        let (code, told) = self.oncely(&["status", "--json"]).await?;
        let told: Value = serde_json::from_str(&told).context("oncely status --json")?;
        let mut said = vec![format!("exit {code}")];
        for server in ["postgres", "rabbitmq"] {
            if let Some(error) = told[format!("{server}_error")].as_str() {
                said.push(format!("exit {code} {server}: {error}"));
            }
        }
        said.extend(told["findings"].as_array().into_iter().flatten().map(|finding| {
            let part = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
            format!("exit {code} {} {}: {}", part("severity"), part("about"), part("text"))
        }));
        Ok(said)
    }

    async fn doctor(&self) -> anyhow::Result<Vec<String>> {
        let (_, told) = self.oncely(&["doctor", "--json"]).await?;
        let told: Value = serde_json::from_str(&told).context("oncely doctor --json")?;
        let all = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
        let away = all(&told, "unreachable").into_iter();
        let away = away.filter_map(|server| Some(format!("unreachable {}", server.as_str()?)));
        let found = all(&told, "checks").into_iter().flat_map(|check| all(&check, "findings"));
        Ok(away
            .chain(found.map(|finding| {
                let part = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
                format!("{} {} {}: {}", part("verdict"), part("check"), part("about"), part("text"))
            }))
            .collect())
    }

    /// What is pending or fires. `for:` is not waited for.
    async fn alerts(&self) -> anyhow::Result<Vec<String>> {
        let answer =
            get(&format!("http://{}/api/v1/alerts", self.prometheus), None, Duration::from_secs(5)).await?;
        let answer: Value = serde_json::from_str(&answer.body)?;
        let alerts = answer["data"]["alerts"].as_array().context("no alerts")?;
        Ok(alerts
            .iter()
            .map(|alert| {
                let label = |name: &str| alert["labels"][name].as_str().unwrap_or_default().to_owned();
                let summary = alert["annotations"]["summary"].as_str().unwrap_or_default();
                format!("{} {}: {summary}", label("severity"), label("alertname"))
            })
            .collect())
    }

    /// The `for:` of alerts, in seconds, by severity and name.
    pub(super) async fn durations(&self) -> anyhow::Result<Vec<(String, u64)>> {
        let answer =
            get(&format!("http://{}/api/v1/rules", self.prometheus), None, Duration::from_secs(5)).await?;
        let answer: Value = serde_json::from_str(&answer.body)?;
        let groups = answer["data"]["groups"].as_array().context("no groups")?;
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().into_iter().flatten());
        Ok(rules
            .map(|rule| {
                let name = rule["name"].as_str().unwrap_or_default();
                let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
                (format!("{severity} {name}"), rule["duration"].as_f64().map_or(0, whole))
            })
            .collect())
    }

    async fn oncely(&self, arguments: &[&str]) -> anyhow::Result<(i32, String)> {
        let mut command = Command::new(&self.oncely);
        command.args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = command.kill_on_drop(true).output().await.context("cannot run oncely")?;
        Ok((output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned()))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // hours at most
fn whole(seconds: f64) -> u64 {
    seconds.max(0.0) as u64
}

/// Lines of a frame; one that is indented goes on with the one before.
fn joined(frame: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in frame.lines() {
        match lines.last_mut() {
            Some(last) if line.starts_with("  ") => last.push_str(line),
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}
