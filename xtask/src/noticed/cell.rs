//! How soon one observer says that something is wrong, and that it is good again.

use std::time::{Duration, Instant};

use super::observer::{Observer, Observers};
use super::trouble::Trouble;

/// How often each is asked.
const PAUSE: Duration = Duration::from_millis(250);

/// One observer and one trouble.
pub(super) struct Cell {
    pub(super) observer: Observer,
    /// `None`: not within the limit.
    pub(super) told: Option<Duration>,
    /// In which words.
    pub(super) sentence: String,
    /// Until it says so no more; `None`: not within the limit.
    pub(super) healed: Option<Duration>,
}

/// Asks until one sentence has the words, or until `limit` has passed since `begin`.
pub(super) async fn wait_until_told(
    observers: &Observers,
    (trouble, observer): (Trouble, Observer),
    begin: Instant,
    limit: Duration,
) -> Cell {
    let mut cell = Cell { observer, told: None, sentence: String::new(), healed: None };
    while begin.elapsed() < limit {
        if let Some(sentence) = find_sentence(observers, trouble, observer).await.flatten() {
            cell.told = Some(begin.elapsed());
            cell.sentence = sentence;
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    cell
}

/// Asks until no sentence has them.
pub(super) async fn wait_until_silent(
    observers: &Observers,
    (trouble, observer): (Trouble, Observer),
    begin: Instant,
    limit: Duration,
) -> Option<Duration> {
    while begin.elapsed() < limit {
        if let Some(None) = find_sentence(observers, trouble, observer).await {
            return Some(begin.elapsed());
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}

/// Finds the sentence that has the words; `None` where the observer gave no answer.
async fn find_sentence(
    observers: &Observers,
    trouble: Trouble,
    observer: Observer,
) -> Option<Option<String>> {
    let said = observers.ask(observer).await.ok()?;
    let all = trouble.words(observer);
    Some(
        said.into_iter()
            .find(|sentence| all.iter().any(|words| words.iter().all(|word| sentence.contains(word)))),
    )
}
