//! The console: how fast its pages are over millions of rows, and what it costs the workers to be looked at.

mod browser;
mod interference;
mod landmarks;
mod pages;
mod scans;
mod verbs;

pub(crate) use interference::interference;
pub(crate) use pages::pages;
