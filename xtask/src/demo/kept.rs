//! `--keep`: what stays up after the demo, with something to look at in the console.

use std::io::Write as _;
use std::time::Duration;

use testbed::Arena;

use super::scene::Scene;
use crate::serve;

/// How often is looked whether the console has printed another link.
const LOOK: Duration = Duration::from_millis(300);

/// Brings about what there is to look at, prints where everything is, and keeps it until Ctrl-C. Of a run that was not `good` all stays as
/// it is.
pub(crate) async fn hold(arena: &mut Arena, good: bool, json: bool) -> anyhow::Result<()> {
    let scene = match good {
        true => {
            eprintln!("a bad day for the console: half a minute");
            Some(Scene::set(arena).await?)
        }
        false => None,
    };
    if let Some(scene) = &scene {
        tell(&scene.text, json)?;
    }
    serve::print_exports(&arena.environment())?;
    let mut ended = std::pin::pin!(serve::wait_for_interrupt());
    let mut told = scene.as_ref().map_or(0, Scene::printed);
    loop {
        tokio::select! {
            ended = ended.as_mut() => return ended,
            () = tokio::time::sleep(LOOK) => {}
        }
        // The page that asks somebody to sign in has one printed.
        let links = scene.as_ref().map(Scene::links).unwrap_or_default();
        for link in links.iter().skip(told) {
            tell(link, json)?;
        }
        told = told.max(links.len());
    }
}

/// On stderr where stdout is a machine's.
fn tell(text: &str, json: bool) -> anyhow::Result<()> {
    match json {
        true => eprintln!("{text}"),
        false => writeln!(std::io::stdout().lock(), "{text}")?,
    }
    Ok(())
}
