//! The checks, one concern a file.

mod axe;
mod flows;
mod follow;
mod hidden;
mod hostile;
mod keyboard;
mod narrow;
mod pause;
mod quiet;
mod requeue;
mod search;
mod sign_in;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use crate::ground::Ground;

/// A sentence that is true, or not.
pub(crate) struct Check {
    pub(crate) sentence: &'static str,
    pub(crate) run: fn(&Ground) -> LocalBoxFuture<'_, anyhow::Result<()>>,
    /// Others build on what it leaves behind.
    pub(crate) is_needed: bool,
}

/// All, in the order in which they run.
pub(crate) fn all() -> Vec<Check> {
    macro_rules! check {
        ($sentence:literal, $run:path) => {
            Check { sentence: $sentence, run: |ground| $run(ground).boxed_local(), is_needed: false }
        };
    }
    vec![
        Check {
            is_needed: true,
            ..check!("the printed link lets in whoever follows it, once", sign_in::once)
        },
        Check {
            is_needed: true,
            ..check!(
                "a failed group is requeued: plan, reason and typed count, progress, and what came back",
                requeue::by_mouse
            )
        },
        check!("a consumer is paused and resumed, each with a reason, and its worker obeys", pause::by_mouse),
        check!("a search leads to a key, and the key tells its story", search::by_mouse),
        check!("without JavaScript a failed group is requeued", requeue::without_scripts),
        check!("without JavaScript a consumer is paused and resumed", pause::without_scripts),
        check!("without JavaScript a search leads to a key", search::without_scripts),
        check!(
            "the keyboard alone reaches a failed group and requeues it, and the focus is always seen",
            keyboard::requeues
        ),
        check!("what has the focus keeps it while the page stays current", keyboard::keeps_the_focus),
        check!(
            "a hidden tab asks for nothing, and one that is seen again asks at once",
            hidden::asks_for_nothing
        ),
        check!(
            "the trail is followed: what is decided appears at once, on a page that was renewed before, too",
            follow::tells
        ),
        check!("keys that mean harm are text on every page, and their links lead to them", hostile::is_text),
        check!("no page scrolls sideways at 360 pixels", narrow::fits),
        check!("at 360 pixels all pages and a group's actions are on the screen", narrow::shows_what_can_be_done),
        check!("axe-core finds nothing serious on any page, by day and by night", axe::finds_nothing),
        check!(
            "no page complained: no error in the console, nothing that the content policy stopped",
            quiet::nobody_complained
        ),
    ]
}
