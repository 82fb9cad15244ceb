//! What processes have used, from the operating system.

use std::time::Duration;

/// CPU time of a process: user and system, all threads, without its children. `None` when it is gone, or where there is no
/// `/proc`. Counted in ticks of 10 ms.
#[must_use]
pub fn cpu_time(pid: u32) -> Option<Duration> {
    Stat::read(pid).map(|stat| stat.own)
}

/// CPU time of a process with all its children, those that have ended included: a PostgreSQL server with its backends.
#[must_use]
pub fn cpu_time_of_family(pid: u32) -> Option<Duration> {
    let parent = Stat::read(pid)?;
    let children = std::fs::read_dir("/proc").ok()?;
    let live: Duration = children
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(Stat::read)
        .filter(|stat| stat.parent == pid)
        .map(|stat| stat.own)
        .sum();
    Some(parent.own + parent.reaped + live)
}

struct Stat {
    parent: u32,
    own: Duration,
    /// Of children that have ended.
    reaped: Duration,
}

impl Stat {
    /// proc(5): the fields are counted behind the name, which may hold anything.
    fn read(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let time = |ticks: u64| {
            Duration::from_micros(ticks * 1_000_000 / rustix::param::clock_ticks_per_second().max(1))
        };
        Some(Self {
            parent: u32::try_from(ticks(1)?).ok()?,
            own: time(ticks(11)? + ticks(12)?),
            reaped: time(ticks(13)? + ticks(14)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_has_used_what_its_ended_children_have_used() {
        let me = std::process::id();
        let (before, own) = (cpu_time_of_family(me).unwrap(), cpu_time(me).unwrap());
        let script = "n=0; while [ $n -lt 200000 ]; do n=$((n+1)); done";
        assert!(std::process::Command::new("sh").args(["-c", script]).status().unwrap().success());
        let used = cpu_time_of_family(me).unwrap() - before;
        let alone = cpu_time(me).unwrap() - own;
        assert!(used >= alone + Duration::from_millis(20), "{used:?} with the child, {alone:?} without");
    }
}
