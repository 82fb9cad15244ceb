//! Recorder of a process's metrics.

/// Recorder of this process's metrics. With a listener it is Oncely's own, which `/metrics` shows; without one it is the recorder that the
/// embedding program has installed (`metrics::set_global_recorder`), or none.
pub struct Registry {
    #[cfg(feature = "listener")]
    own: Option<OwnRecorder>,
}

#[cfg(feature = "listener")]
struct OwnRecorder {
    recorder: metrics_exporter_prometheus::PrometheusRecorder,
    handle: metrics_exporter_prometheus::PrometheusHandle,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

/// Bounds of the histogram of batch sizes.
#[cfg(feature = "listener")]
const BATCH_BOUNDS: [f64; 12] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 4_096.0];

impl Registry {
    /// Creates a registry with Oncely's own recorder, for a process that listens, and registers the program's metrics with it.
    ///
    /// # Errors
    /// If the buckets of the histograms are refused.
    #[cfg(feature = "listener")]
    pub(crate) fn new_with_own_recorder(program: &str) -> Result<Self, String> {
        use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

        let builder = PrometheusBuilder::new()
            .set_buckets(&oncely_core::durations::BUCKET_BOUNDS)
            .and_then(|builder| {
                builder
                    .set_buckets_for_metric(Matcher::Full("oncely_batch_messages".to_owned()), &BATCH_BOUNDS)
            })
            .map_err(|error| error.to_string())?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let registry = Self { own: Some(OwnRecorder { recorder, handle }) };
        registry.with_recorder(|| super::catalogue::register_descriptions(program));
        Ok(registry)
    }

    /// Creates a registry that uses the embedding program's recorder, and registers the program's metrics with it.
    pub(crate) fn new_with_global_recorder(program: &str) -> Self {
        super::catalogue::register_descriptions(program);
        Self {
            #[cfg(feature = "listener")]
            own: None,
        }
    }

    /// Runs `make` with this recorder as the current one, so that the handles that it creates count there. Returns its result.
    pub(crate) fn with_recorder<T>(&self, make: impl FnOnce() -> T) -> T {
        #[cfg(feature = "listener")]
        if let Some(own) = &self.own {
            return metrics::with_local_recorder(&own.recorder, make);
        }
        make()
    }

    /// Renders all metrics in Prometheus's format; empty if they are recorded elsewhere.
    #[cfg(feature = "listener")]
    pub(crate) fn render(&self) -> String {
        self.own.as_ref().map(|own| own.handle.render()).unwrap_or_default()
    }

    /// Moves observations into their buckets. Called at intervals, as they use memory until the next rendering.
    #[cfg(feature = "listener")]
    pub(crate) fn run_upkeep(&self) {
        if let Some(own) = &self.own {
            own.handle.run_upkeep();
        }
    }
}
