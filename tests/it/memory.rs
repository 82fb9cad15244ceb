//! The memory of PostgreSQL's process between batches.

use crate::support::{World, message};

#[tokio::test]
async fn the_servers_process_keeps_the_memory_of_a_large_batch() {
    let mut world = World::new().await;
    world.consumer("payments", "lanes = 1\nbatch = 500");
    world.apply_topology().await;
    let queue = world.queue("payments");
    let body = format!("{{\"note\": \"{}\"}}", "x".repeat(250));
    let messages = (0..5_000)
        .map(|number| (queue.clone(), message("acme", &format!("k{number}")), body.clone().into_bytes()))
        .collect();
    world.broker.publish_all("", messages).await.unwrap();
    let worker = world.start("worker");
    world.wait_for("select count(*) from app.effects", 5_000).await;
    // proc(5): the tenth field is the number of page faults for which nothing was read. The name of the process has blanks in it.
    let faults = world
        .count(
            "select max(split_part(substring(pg_read_file('/proc/' || pid || '/stat') from '\\) (.*)$'), ' ', 8)::bigint)
             from pg_stat_activity where application_name like 'oncely worker%' and datname = current_database()",
        )
        .await;
    world.stop(worker).await;
    // 6,100 here (the first touch of shared buffers, most of them), and 14,100 where the memory goes back to the kernel.
    assert!((500..10_000).contains(&faults), "{faults} page faults");
}
