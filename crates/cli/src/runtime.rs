//! The asynchronous runtimes of the programs.

use std::io;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

/// Most threads of a program that has no setting for them: each takes 2 MiB of memory for its stack.
const MAX_THREADS: usize = 16;

/// Most threads that look up names of hosts and read files: by default 512, a gigabyte of stacks while no name server answers.
const MAX_BLOCKING_THREADS: usize = 32;

/// Creates the runtime of a command: a thread for each processor.
///
/// # Errors
/// If the operating system refuses a thread.
pub(crate) fn new_for_command() -> io::Result<Runtime> {
    with_threads(available_parallelism().map_or(1, usize::from).min(MAX_THREADS))
}

/// Creates a runtime with this number of threads.
///
/// # Errors
/// If the operating system refuses a thread.
pub(crate) fn with_threads(threads: usize) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .enable_all()
        .build()
}
