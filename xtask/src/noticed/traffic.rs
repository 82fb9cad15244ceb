//! Steady traffic: some twenty messages a second, of four tenants, in turns to each consumer.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use testbed::Broker;
use tokio::task::JoinHandle;

const PAUSE: Duration = Duration::from_millis(50);
/// A broker that takes longer is away.
const LIMIT: Duration = Duration::from_secs(5);
const TENANTS: [&str; 4] = ["acme", "globex", "initech", "umbrella"];

/// Goes on until it is dropped, whatever becomes of broker and queues.
pub(super) struct Traffic(JoinHandle<()>);

impl Traffic {
    pub(super) fn start(url: String, queues: [&'static str; 2]) -> Self {
        Self(tokio::spawn(async move {
            let mut number: usize = 0;
            loop {
                if let Ok(Ok(broker)) = tokio::time::timeout(LIMIT, Broker::connect(&url)).await {
                    while broker.channel().status().connected() {
                        let queue = queues[number % queues.len()];
                        let tenant = TENANTS[number / queues.len() % TENANTS.len()];
                        number += 1;
                        let message = properties(tenant, number);
                        // Returned where the queue is missing; the next one may arrive.
                        let _ = tokio::time::timeout(LIMIT, broker.publish("", queue, message, b"{}")).await;
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn properties(tenant: &str, number: usize) -> BasicProperties {
    let mut headers = FieldTable::default();
    headers.insert("x-tenant-id".into(), AMQPValue::LongString(tenant.into()));
    BasicProperties::default().with_message_id(format!("message-{number}").into()).with_headers(headers)
}
