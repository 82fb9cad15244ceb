//! What many runs say at the same time, said together: one statement and one commit for all of them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::sessions::{After, Sessions, Statement};
use crate::pg::is_outage;

/// Most that is said in one statement: locks of so many rows, and responses of so many runs in memory.
const MOST: usize = 128;

/// Makes the statement that says all of them; its answers stand in their order.
pub(crate) type Say<Q, A> = dyn Fn(Vec<Arc<Q>>) -> Statement<Vec<A>, sqlx::Error> + Send + Sync;

/// Where runs say it.
pub(crate) struct Group<Q, A>(mpsc::UnboundedSender<Asked<Q, A>>);

struct Asked<Q, A> {
    question: Arc<Q>,
    answer: oneshot::Sender<Result<A, sqlx::Error>>,
}

impl<Q, A> Clone for Group<Q, A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<Q: Send + Sync + 'static, A: Send + 'static> Group<Q, A> {
    /// `loops` of them at the same time, each in a session of its own; `linger`: how long one waits for more. What is said while all of
    /// them are out goes together with the next. Ends when nobody can say anything any more.
    pub(crate) fn start(
        sessions: &Arc<Sessions>,
        loops: usize,
        linger: Duration,
        say: Arc<Say<Q, A>>,
    ) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..loops {
            tokio::spawn(serve(Arc::clone(&receiver), Arc::clone(sessions), linger, Arc::clone(&say)));
        }
        Self(sender)
    }

    /// Says it once, to its end, whoever stops waiting for it.
    pub(crate) fn say(&self, question: Q) -> BoxFuture<'static, Result<A, sqlx::Error>> {
        let (answer, answered) = oneshot::channel();
        // Where nobody takes it, its other end is dropped with it.
        let _ = self.0.send(Asked { question: Arc::new(question), answer });
        Box::pin(async move { answered.await.unwrap_or(Err(sqlx::Error::WorkerCrashed)) })
    }
}

async fn serve<Q: Send + Sync + 'static, A: Send + 'static>(
    receiver: Arc<Mutex<mpsc::UnboundedReceiver<Asked<Q, A>>>>,
    sessions: Arc<Sessions>,
    linger: Duration,
    say: Arc<Say<Q, A>>,
) {
    loop {
        let mut asked = Vec::new();
        {
            let mut receiver = receiver.lock().await;
            if receiver.recv_many(&mut asked, MOST).await == 0 {
                return;
            }
            if !linger.is_zero() {
                tokio::time::sleep(linger).await;
                while asked.len() < MOST
                    && let Ok(one) = receiver.try_recv()
                {
                    asked.push(one);
                }
            }
        }
        together(&sessions, &*say, asked).await;
    }
}

async fn together<Q: Send + Sync + 'static, A: Send + 'static>(
    sessions: &Arc<Sessions>,
    say: &Say<Q, A>,
    asked: Vec<Asked<Q, A>>,
) {
    let (questions, answers): (Vec<Arc<Q>>, Vec<_>) =
        asked.into_iter().map(|one| (one.question, one.answer)).unzip();
    let tell = |answer: oneshot::Sender<_>, said| {
        // Nobody waits any more: a run that was dropped.
        let _ = answer.send(said);
    };
    match sessions.once(After::Keep, say(questions.clone())).await {
        Ok(said) => {
            for (answer, said) in answers.into_iter().zip(said) {
                tell(answer, Ok(said));
            }
        }
        // Said again by whoever wants to know, as long as he does.
        Err(error) if is_outage(&error) => {
            for answer in answers {
                let away = std::io::Error::new(std::io::ErrorKind::ConnectionAborted, error.to_string());
                tell(answer, Err(sqlx::Error::Io(away)));
            }
        }
        // One of them may be the cause: nothing was written, and each is said by itself.
        Err(_) => {
            let each = questions.into_iter().zip(answers).map(async |(question, answer)| {
                let said = sessions.once(After::Keep, say(vec![question])).await;
                let said = said.and_then(|said| said.into_iter().next().ok_or(sqlx::Error::WorkerCrashed));
                tell(answer, said);
            });
            join_all(each).await;
        }
    }
}
