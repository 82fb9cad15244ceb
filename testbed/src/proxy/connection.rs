//! One connection through the proxy.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::pump::{Cut, Pump};
use super::{Direction, Mode, Shared};

/// Forwards until both ways have ended, or something resets the connection.
pub(super) async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    let mut mode = shared.mode.subscribe();
    if *mode.borrow() == Mode::Refuse {
        reset(&client);
        return;
    }
    let upstream = *shared.upstream.lock().unwrap_or_else(PoisonError::into_inner);
    // Through a black hole nobody learns whether the server is there.
    let connecting = async {
        let _ = mode.wait_for(|mode| *mode != Mode::BlackHole).await;
        tokio::time::timeout(Duration::from_secs(5), TcpStream::connect(upstream)).await
    };
    let server = tokio::select! {
        server = connecting => server,
        _ = cut.changed() => {
            reset(&client);
            return;
        }
    };
    let Ok(Ok(server)) = server else {
        reset(&client);
        return;
    };
    if client.set_nodelay(true).and_then(|()| server.set_nodelay(true)).is_err() {
        reset(&client);
        return;
    }
    // The answer to a COMMIT is to be lost: set by the way up, read by the way down.
    let swallow = AtomicBool::new(false);
    let (mut client_reads, mut client_writes) = client.into_split();
    let (mut server_reads, mut server_writes) = server.into_split();
    let ended = {
        let up = Pump::new(Direction::Up, &shared, &swallow).run(&mut client_reads, &mut server_writes);
        let down = Pump::new(Direction::Down, &shared, &swallow).run(&mut server_reads, &mut client_writes);
        tokio::select! {
            ended = async { tokio::try_join!(up, down) } => ended.map(drop),
            _ = cut.changed() => Err(Cut),
        }
    };
    if ended.is_err() {
        reset(client_reads.as_ref());
        reset(server_reads.as_ref());
        // Dropped, they would say good-bye first.
        client_writes.forget();
        server_writes.forget();
    }
}

/// When it is closed now, the other side gets a reset.
fn reset(stream: &TcpStream) {
    // Fails only on a socket that is gone anyway.
    let _ = stream.set_zero_linger();
}
