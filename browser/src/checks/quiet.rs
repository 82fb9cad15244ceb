//! What pages complained of while all other checks ran.

use crate::ground::Ground;
use crate::places::REFUSED;

pub(super) async fn nobody_complained(ground: &Ground) -> anyhow::Result<()> {
    let is_meant = |complaint: &String| {
        complaint.contains("Failed to load resource") && REFUSED.iter().any(|path| complaint.contains(&ground.site.url(path)))
    };
    let complaints: Vec<String> = ground.chromium.complaints.all().into_iter().filter(|complaint| !is_meant(complaint)).collect();
    anyhow::ensure!(complaints.is_empty(), "{}", complaints.join("\n  "));
    Ok(())
}
