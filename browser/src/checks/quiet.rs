//! What pages complained of while all other checks ran.

use crate::ground::Ground;
use crate::places::REFUSED;

pub(super) async fn nobody_complained(ground: &Ground) -> anyhow::Result<()> {
    // An answer that is no page is logged as an error. These are meant: the pages above, and senseless questions.
    let is_meant = |complaint: &String| {
        complaint.contains("the server responded with a status of 4")
            && (REFUSED.iter().any(|path| complaint.contains(&ground.site.url(path)))
                || complaint.contains("data-hostile"))
    };
    let complaints: Vec<String> =
        ground.chromium.complaints.all().into_iter().filter(|complaint| !is_meant(complaint)).collect();
    anyhow::ensure!(complaints.is_empty(), "{}", complaints.join("\n  "));
    Ok(())
}
