//! The memory of the server's process behind a session.

use super::Session;

impl Session {
    /// Has the server's process keep the memory of a batch for the next one, up to 8 MiB. Does so once; for sessions that run
    /// large batches.
    ///
    /// A batch of 500 small messages takes 5 MiB there. Left alone, glibc hands it back to the kernel after each batch and gets
    /// it anew, zeroed page by page: 1,300 page faults a batch, 15 % of its time (`perf`). Freeing one large block raises both
    /// of glibc's limits, to its size and to twice its size (mallopt(3), `M_MMAP_THRESHOLD`, "dynamic"). It takes a few
    /// milliseconds; with another allocator nothing changes. Cut short, it leaves nothing behind but the memory.
    ///
    /// # Errors
    /// When the connection is lost. A server that has no memory for it does without.
    pub(crate) async fn keep_memory(&mut self) -> Result<(), sqlx::Error> {
        if self.keeps_memory {
            return Ok(());
        }
        // From a set, so that the planner doesn't make up the value, too.
        let block = sqlx::query!(
            r#"select pg_catalog.octet_length(pg_catalog.repeat(pg_catalog.repeat('x', 1024), kib)) as "bytes!"
            from pg_catalog.generate_series(4096, 4096) as kib"#
        );
        match block.fetch_one(&mut self.connection).await {
            Err(sqlx::Error::Database(error)) => {
                tracing::debug!(code = error.code().as_deref(), "the server keeps no memory between batches");
            }
            other => {
                other?;
            }
        }
        self.keeps_memory = true;
        Ok(())
    }
}
