//! The memory of the server process behind a session.

use super::Session;

impl Session {
    /// Makes the server process keep the memory of a batch for the next one, up to 8 MiB. Acts once; for sessions that run large batches.
    ///
    /// A batch of 500 small messages takes 5 MiB there. By default glibc returns it to the kernel after each batch and gets it again,
    /// zeroed page by page: 1,300 page faults a batch, 15 % of its time (`perf`). Freeing one large block raises both of glibc's limits, to
    /// its size and to twice its size (mallopt(3), `M_MMAP_THRESHOLD`, "dynamic"). It takes a few milliseconds; with another allocator
    /// nothing changes. Cancelled, it leaves nothing behind but the memory.
    ///
    /// # Errors
    /// If the connection is lost. A server without memory for it is not an error.
    pub async fn keep_memory(&mut self) -> sqlx::Result<()> {
        if self.keeps_memory {
            return Ok(());
        }
        // From a set, so that the planner does not compute the value as well.
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
