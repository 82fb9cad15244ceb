//! Liveness, readiness and state of a process, published at `/livez`, `/readyz` and `/statusz`, in its heartbeat, and to systemd.

#[cfg(feature = "listener")]
mod listener;
mod liveness;
#[cfg(feature = "systemd")]
mod systemd;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
#[cfg(feature = "listener")]
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use liveness::{Liveness, LoopBeat};

use crate::metrics::{ProcessMetrics, Registry, Server};
use oncely_config::{Problems, host_name};
use oncely_postgres::{Process, Readiness};

/// Maximum time that a starting process waits for its address: the previous process may still finish its work (`worker.shutdown`, by
/// default 25 s).
#[cfg(feature = "listener")]
const ADDRESS_WAIT: Duration = Duration::from_secs(60);

/// Listens at an address; if another process uses it, waits until it is free, for up to [`ADDRESS_WAIT`]. Returns `None` if it stays in
/// use, or `stop` is cancelled.
#[cfg(feature = "listener")]
async fn bind(
    address: std::net::SocketAddr,
    stop: &CancellationToken,
) -> std::io::Result<Option<tokio::net::TcpListener>> {
    let began = Instant::now();
    let mut is_logged = false;
    loop {
        match tokio::net::TcpListener::bind(address).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
        if began.elapsed() >= ADDRESS_WAIT {
            tracing::error!(%address, waited = ?ADDRESS_WAIT, "listen address still in use; exiting");
            return Ok(None);
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(%address, limit = ?ADDRESS_WAIT, "listen address in use by another process; retrying");
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
        }
    }
}

/// Public part of a consumer's report: counters, codes and times. Tenants, keys, texts of a database or a handler, and the author and
/// reason of a pause are only in `oncely.processes`. An allow-list, so that new fields stay private.
const PUBLIC_FIELDS: [&str; 10] = [
    "consumer",
    "counts",
    "unsettled",
    "completed_at",
    "unacknowledged",
    "stalled",
    "failed",
    "failing",
    "contended",
    "paused",
];
/// Public fields of the parts of a consumer's report.
const PUBLIC_PART_FIELDS: [&str; 5] = ["since", "code", "messages", "paused_at", "paused_until"];

/// Removes the fields that may hold keys or texts of errors from the reports of consumers.
fn retain_public_fields(report: Value) -> Value {
    let retain_fields = |value: Value, names: &[&str]| match value {
        Value::Object(fields) => {
            fields.into_iter().filter(|(name, _)| names.contains(&name.as_str())).collect::<Map<_, _>>()
        }
        _ => Map::new(),
    };
    let consumer = |value: Value| {
        let mut fields = retain_fields(value, &PUBLIC_FIELDS);
        for part in ["stalled", "failed", "failing", "contended", "paused"] {
            if let Some(part) = fields.get_mut(part).filter(|part| part.is_object()) {
                *part = Value::Object(retain_fields(part.take(), &PUBLIC_PART_FIELDS));
            }
        }
        Value::Object(fields)
    };
    match report {
        Value::Array(consumers) => consumers.into_iter().map(consumer).collect(),
        _ => Value::Array(Vec::new()),
    }
}

/// Source of a report.
type ReportFn = Box<dyn Fn() -> Value + Send + Sync>;

/// A starting process.
pub struct Program<'a> {
    /// `worker`, `relay` or `gateway`.
    pub kind: &'static str,
    /// Name of the process.
    pub name: &'a str,
    /// Digest of its configuration.
    pub digest: &'a str,
    /// Servers that it needs.
    pub servers: &'a [Server],
    /// Listen address for metrics and health, and the setting with it.
    pub listen: Option<std::net::SocketAddr>,
    pub setting: &'static str,
    pub notifies_systemd: bool,
}

/// Vital signs of a process.
pub struct Vitals {
    pub(crate) process: Process,
    /// Loops that are watched.
    pub liveness: Liveness,
    pub metrics: ProcessMetrics,
    registry: Registry,
    started_at: DateTime<Utc>,
    state: Mutex<VitalsState>,
    report: OnceLock<ReportFn>,
    /// Whether its configuration is accepted: it works, or waits for its servers.
    is_up: AtomicBool,
    /// Notifies the systemd task of changes.
    changed: Notify,
}

struct VitalsState {
    readiness: Readiness,
    /// Degraded operation that does not affect readiness.
    degraded: Option<String>,
}

impl std::fmt::Debug for Vitals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vitals").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Vitals {
    /// Starts a process's vital signs: listens at `listen` during the runtime's lifetime, and notifies systemd. Returns `None` if another
    /// process keeps the address, or `stop` is cancelled.
    ///
    /// # Errors
    /// If the process can't listen there.
    pub(crate) async fn start(
        program: Program<'_>,
        stop: &CancellationToken,
    ) -> Result<Option<Arc<Self>>, Problems> {
        let Program { kind, name, digest, servers, listen, setting, notifies_systemd } = program;
        #[cfg(feature = "listener")]
        let (registry, listener) = match listen {
            None => (Registry::new_with_global_recorder(kind), None),
            Some(address) => {
                let refused = |error: String| {
                    let mut problems = Problems::default();
                    problems.add(setting, format!("cannot listen on {address}: {error}"));
                    problems
                };
                let registry = Registry::new_with_own_recorder(kind).map_err(refused)?;
                match bind(address, stop).await.map_err(|error| refused(error.to_string()))? {
                    Some(listener) => (registry, Some(listener)),
                    None => return Ok(None),
                }
            }
        };
        #[cfg(not(feature = "listener"))]
        let registry = {
            // The configuration refuses a listen address.
            let _ = (listen, setting, stop);
            Registry::new_with_global_recorder(kind)
        };
        let metrics = registry.with_recorder(|| ProcessMetrics::register(digest, servers));
        let vitals = Arc::new(Self {
            process: Process {
                id: Uuid::now_v7(),
                kind,
                name: name.to_owned(),
                host: host_name().unwrap_or_default(),
                config_digest: digest.to_owned(),
            },
            liveness: Liveness::default(),
            metrics,
            registry,
            started_at: Utc::now(),
            state: Mutex::new(VitalsState {
                readiness: Readiness::Starting("the servers are looked at".to_owned()),
                degraded: None,
            }),
            report: OnceLock::new(),
            is_up: AtomicBool::new(false),
            changed: Notify::new(),
        });
        #[cfg(feature = "systemd")]
        if notifies_systemd {
            systemd::spawn_notifier(Arc::clone(&vitals));
        }
        #[cfg(not(feature = "systemd"))]
        let _ = notifies_systemd;
        #[cfg(feature = "listener")]
        if let Some(listener) = listener {
            listener::serve(Arc::clone(&vitals), listener).map_err(|error| {
                let mut problems = Problems::default();
                problems.add(setting, format!("cannot listen: {error}"));
                problems
            })?;
        }
        Ok(Some(vitals))
    }

    /// Runs `make` with the process's recorder as the current one, so that the handles of metrics that it creates count there.
    pub fn with_registry<T>(&self, make: impl FnOnce() -> T) -> T {
        self.registry.with_recorder(make)
    }

    /// Sets the source of the consumers' report. Only the first call counts.
    pub fn set_report_source(&self, report: impl Fn() -> Value + Send + Sync + 'static) {
        let _ = self.report.set(Box::new(report));
    }

    /// Returns the consumers' report; an empty array without a source.
    pub(crate) fn report(&self) -> Value {
        self.report.get().map_or_else(|| Value::Array(Vec::new()), |report| report())
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.lock().readiness.clone()
    }

    /// Sets the readiness of the process, and notifies systemd of a change. A stopping process keeps its readiness.
    pub fn set_readiness(&self, readiness: Readiness) {
        let mut state = self.lock();
        // A stopping process does not become ready again.
        if state.readiness == Readiness::Stopping {
            return;
        }
        self.metrics.ready.set(if readiness == Readiness::Ready { 1.0 } else { 0.0 });
        let changed = std::mem::replace(&mut state.readiness, readiness.clone()) != readiness;
        drop(state);
        self.is_up.store(true, Ordering::Release);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Sets the description of degraded operation.
    pub fn set_degraded(&self, degraded: Option<String>) {
        self.lock().degraded = degraded;
    }

    /// Returns the row of `oncely.processes` as JSON, for `/statusz`, reduced to its public part.
    pub fn status(&self) -> Value {
        let state = self.lock();
        let (readiness, degraded) = (state.readiness.clone(), state.degraded.clone());
        drop(state);
        json!({
            "schema": "oncely.statusz/1", "id": self.process.id, "kind": self.process.kind, "name": self.process.name,
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
            "config_digest": self.process.config_digest, "started_at": self.started_at, "state": readiness.state(),
            "reason": readiness.reason(), "degraded": degraded, "overdue": self.liveness.overdue_loops(),
            "consumers": retain_public_fields(self.report()),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VitalsState> {
        // Every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
