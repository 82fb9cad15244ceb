//! Who gets in, and what they may do.

mod limits;
mod origins;
mod roles;
mod sessions;

use std::os::unix::fs::PermissionsExt as _;

use super::{Client, signed_in};
use crate::support::World;

const VIEWER: &str = "0123456789abcdef01234567";
const OPERATOR: &str = "abcdef0123456789abcdef01";

/// A world whose console knows ana, who may look, and bo, who may act.
async fn with_tokens() -> World {
    let mut world = World::new().await;
    world.consumer("payments", "");
    let file = world.file().with_file_name("tokens");
    std::fs::write(&file, format!("viewer ana {VIEWER}\noperator bo {OPERATOR}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    world.configure(&format!("[console]\ntokens = {:?}", file.display().to_string()));
    world.register("payments", "7 days").await;
    world
}

async fn by_token(client: &Client, token: &str) -> Client {
    let answer = client.post("/login", &[("token", token)]).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    signed_in(client, &answer)
}
